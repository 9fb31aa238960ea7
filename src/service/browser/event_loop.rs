//! Leaving a turn to the worker's other work.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::MessageChannel;

/// A channel to oneself: a message on it comes after what was waiting, and sooner than a timer, which
/// browsers make wait.
pub(super) struct Turn {
    channel: Option<MessageChannel>,
    waiting: Rc<RefCell<Option<Waker>>>,
    _came: Closure<dyn FnMut()>,
}

impl Turn {
    pub fn new() -> Self {
        let waiting: Rc<RefCell<Option<Waker>>> = Rc::default();
        let woken = waiting.clone();
        let came = Closure::<dyn FnMut()>::new(move || {
            if let Some(waker) = woken.borrow_mut().take() {
                waker.wake();
            }
        });
        let channel = MessageChannel::new().ok();
        if let Some(channel) = &channel {
            channel.port1().set_onmessage(Some(came.as_ref().unchecked_ref()));
        }
        Self { channel, waiting, _came: came }
    }

    /// Waits for the next turn.
    pub async fn pass(&self) {
        let Some(channel) = &self.channel else { return };
        if channel.port2().post_message(&JsValue::NULL).is_err() {
            return;
        }
        let mut asked = false;
        poll_fn(|context| {
            if asked && self.waiting.borrow().is_none() {
                return Poll::Ready(());
            }
            asked = true;
            self.waiting.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.port1().set_onmessage(None);
            channel.port1().close();
        }
    }
}
