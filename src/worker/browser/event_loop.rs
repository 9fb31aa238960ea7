//! Letting the worker's event loop run while a run trains.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::MessageChannel;

/// A channel from this worker to itself. A message on it arrives after the events that are queued
/// already, and sooner than a timer, which browsers delay.
pub(super) struct EventLoop {
    channel: Option<MessageChannel>,
    waiting: Rc<RefCell<Option<Waker>>>,
    _on_message: Closure<dyn FnMut()>,
}

impl EventLoop {
    pub fn new() -> Self {
        let waiting: Rc<RefCell<Option<Waker>>> = Rc::default();
        let woken = waiting.clone();
        let on_message = Closure::<dyn FnMut()>::new(move || {
            if let Some(waker) = woken.borrow_mut().take() {
                waker.wake();
            }
        });
        let channel = MessageChannel::new().ok();
        if let Some(channel) = &channel {
            channel.port1().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        }
        Self { channel, waiting, _on_message: on_message }
    }

    /// Waits until the queued events were handled.
    pub async fn run_queued(&self) {
        let Some(channel) = &self.channel else { return };
        if channel.port2().post_message(&JsValue::NULL).is_err() {
            return;
        }
        let mut is_waiting = false;
        poll_fn(|context| {
            if is_waiting && self.waiting.borrow().is_none() {
                return Poll::Ready(());
            }
            is_waiting = true;
            self.waiting.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.port1().set_onmessage(None);
            channel.port1().close();
        }
    }
}
