//! Letting the worker's event loop run while a run trains.

use js_sys::Promise;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::MessageChannel;

/// A channel from this worker to itself. A message on it arrives after the events that are queued
/// already, and sooner than a timer, which browsers delay.
pub(super) struct EventLoop(Option<MessageChannel>);

impl EventLoop {
    pub fn new() -> Self {
        Self(MessageChannel::new().ok())
    }

    /// Waits until the queued events were handled.
    pub async fn run_queued(&self) {
        let Some(channel) = &self.0 else { return };
        if channel.port2().post_message(&JsValue::NULL).is_err() {
            return;
        }
        let arrived = Promise::new(&mut |resolve, _| channel.port1().set_onmessage(Some(&resolve)));
        // This promise is not rejected.
        let _ = JsFuture::from(arrived).await;
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Some(channel) = &self.0 {
            channel.port1().set_onmessage(None);
            channel.port1().close();
        }
    }
}
