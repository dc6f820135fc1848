//! The output of the tour: lines of text as they come, or with `--json` one object per step.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

/// Reading time of a heading and of a line.
const AFTER_HEADING: Duration = Duration::from_millis(1800);
const AFTER_LINE: Duration = Duration::from_millis(700);

#[derive(Debug)]
pub(super) struct Transcript {
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

impl Transcript {
    pub(super) fn new(json: bool, paced: bool) -> Self {
        Self { json, paced, number: 0, step: None }
    }

    /// Begins a step.
    pub(super) async fn step(&mut self, step: &'static str, title: &'static str) -> Result<(), Failure> {
        self.end_step()?;
        self.number += 1;
        self.print(format_args!("\n{}. {title}", self.number))?;
        self.step = Some(Step { step, title, lines: Vec::new(), seconds: 0.0, begun: Instant::now() });
        self.pause(AFTER_HEADING).await;
        Ok(())
    }

    /// Prints a line and adds it to the step.
    pub(super) async fn line(&mut self, text: impl Into<String>) -> Result<(), Failure> {
        let text = text.into();
        self.print(format_args!("   {text}"))?;
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

    /// Ends the tour with commands to try.
    pub(super) fn close(&mut self, what: String, commands: Vec<String>) -> Result<(), Failure> {
        self.end_step()?;
        let text = format!("\n{what}\n  {}", commands.join("\n  "));
        let last =
            Step { step: "next", title: "Commands to try next", lines: commands, seconds: 0.0, begun: Instant::now() };
        Output::new(self.json).row(&last, text)
    }

    fn print(&self, text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
        // With `--json` the lines are printed with their step.
        if self.json { Ok(()) } else { Output::new(false).row(&(), text) }
    }

    async fn pause(&self, pause: Duration) {
        if self.paced {
            tokio::time::sleep(pause).await;
        }
    }
}
