//! Tells what happens: lines as they come for people, an object a step for programs.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

/// Time to read a heading, and a line.
const AFTER_HEADING: Duration = Duration::from_millis(1800);
const AFTER_LINE: Duration = Duration::from_millis(700);

/// The one who tells.
#[derive(Debug)]
pub(super) struct Narrator {
    json: bool,
    paced: bool,
    number: usize,
    step: Option<Step>,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Step {
    step: &'static str,
    title: &'static str,
    lines: Vec<String>,
    seconds: f64,
    #[serde(skip)]
    begun: Instant,
}

impl Narrator {
    pub(super) fn new(json: bool, paced: bool) -> Self {
        Self { json, paced, number: 0, step: None }
    }

    /// Begins a step.
    pub(super) async fn step(&mut self, step: &'static str, title: &'static str) -> Result<(), Failure> {
        self.end_step()?;
        self.number += 1;
        self.say(format_args!("\n{}. {title}", self.number))?;
        self.step = Some(Step { step, title, lines: Vec::new(), seconds: 0.0, begun: Instant::now() });
        self.pause(AFTER_HEADING).await;
        Ok(())
    }

    /// Tells one thing that has just happened.
    pub(super) async fn line(&mut self, text: impl Into<String>) -> Result<(), Failure> {
        let text = text.into();
        self.say(format_args!("   {text}"))?;
        if let Some(step) = &mut self.step {
            step.lines.push(text);
        }
        self.pause(AFTER_LINE).await;
        Ok(())
    }

    /// Ends the last step.
    pub(super) fn end_step(&mut self) -> Result<(), Failure> {
        let Some(mut step) = self.step.take().filter(|_| self.json) else {
            return Ok(());
        };
        step.seconds = (step.begun.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        Output::new(true).row(&step, "")
    }

    /// The last words: something to type.
    pub(super) fn close(&mut self, what: String, commands: Vec<String>) -> Result<(), Failure> {
        self.end_step()?;
        let text = format!("\n{what}\n  {}", commands.join("\n  "));
        let last =
            Step { step: "next", title: "What to type now", lines: commands, seconds: 0.0, begun: Instant::now() };
        Output::new(self.json).row(&last, text)
    }

    fn say(&self, text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
        // For programs the lines come with their step.
        if self.json { Ok(()) } else { Output::new(false).row(&(), text) }
    }

    async fn pause(&self, pause: Duration) {
        if self.paced {
            tokio::time::sleep(pause).await;
        }
    }
}
