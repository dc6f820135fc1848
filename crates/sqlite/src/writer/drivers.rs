//! The coalescers' drivers, polled by the writer's own thread.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Wake, Waker};

use postrider_core::coalescer::Drivers as CoalescerDrivers;

use super::Note;

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wakes a driver by a note to the writer. Its way to the inbox ends with the driver.
struct Bell {
    driver: usize,
    inbox: Sender<Note>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A writer that has ended polls nothing any more.
        let _ = self.inbox.send(Note::Poll(self.driver));
    }
}

/// The drivers of every open connection.
#[derive(Default)]
pub(super) struct Drivers {
    running: Vec<(usize, Driver, Waker)>,
    /// Numbers are used once, so that a late call cannot reach another driver.
    next: usize,
}

impl Drivers {
    /// Runs these from now on.
    pub(super) fn add(&mut self, drivers: CoalescerDrivers, inbox: &Sender<Note>) {
        for driver in drivers.into_futures() {
            let number = self.next;
            self.next += 1;
            let bell = Waker::from(Arc::new(Bell { driver: number, inbox: inbox.clone() }));
            self.running.push((number, Box::pin(driver), bell));
            self.poll(number);
        }
    }

    /// Polls one; one that has ended is dropped.
    pub(super) fn poll(&mut self, number: usize) {
        // A handful at most, one for each connection.
        let Some(place) = self.running.iter().position(|(running, ..)| *running == number) else { return };
        let (_, driver, bell) = &mut self.running[place];
        if driver.as_mut().poll(&mut Context::from_waker(bell)).is_ready() {
            drop(self.running.swap_remove(place));
        }
    }
}
