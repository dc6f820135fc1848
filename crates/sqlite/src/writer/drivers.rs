//! The coalescers' drivers, polled by the writer's own thread.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Wake, Waker};

use postrider_core::coalescer::Drivers as CoalescerDrivers;

use super::Command;

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wakes a driver by a command to the writer. Its sender is dropped with the driver.
struct DriverWaker {
    driver: usize,
    commands: Sender<Command>,
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A writer that has ended polls no drivers.
        let _ = self.commands.send(Command::Poll(self.driver));
    }
}

/// The drivers of every open connection.
#[derive(Default)]
pub(super) struct Drivers {
    running: Vec<(usize, Driver, Waker)>,
    /// The next number. Numbers are used once, so that a late wake cannot reach another driver.
    next: usize,
}

impl Drivers {
    /// Adds drivers and polls them.
    pub(super) fn add(&mut self, drivers: CoalescerDrivers, commands: &Sender<Command>) {
        for driver in drivers.into_futures() {
            let number = self.next;
            self.next += 1;
            let waker = Waker::from(Arc::new(DriverWaker { driver: number, commands: commands.clone() }));
            self.running.push((number, Box::pin(driver), waker));
            self.poll(number);
        }
    }

    /// Polls a driver, and drops it when it has ended.
    pub(super) fn poll(&mut self, number: usize) {
        // There are few, one for each connection.
        let Some(index) = self.running.iter().position(|(running, ..)| *running == number) else { return };
        let (_, driver, waker) = &mut self.running[index];
        if driver.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            drop(self.running.swap_remove(index));
        }
    }
}
