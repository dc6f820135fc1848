//! The measured server, in this process or in a child process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use postrider::tasks::Shutdown;
use postrider::{Config, Sources, StateStorage, SystemContext};
use postrider_server::{ServeError, Server, ServerOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::backlog::peak_megabytes;

/// A server in this process.
pub(super) struct LocalServer {
    pub(super) address: SocketAddr,
    shutdown: Shutdown,
    running: JoinHandle<Result<(), ServeError>>,
}

impl LocalServer {
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.shutdown.request();
        Ok(self.running.await??)
    }
}

/// Serves a new file.
pub(super) async fn serve_locally(path: &Path) -> Result<LocalServer, Failure> {
    let url = format!("sqlite:{}", path.display());
    let config = Config::load(&Sources::none().flag("--url", "common.messaging.url", url))?;
    let context = SystemContext::from_config(config).await?;
    let state = StateStorage::new(context.messaging_provider.inner())?;
    let options = ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..ServerOptions::default() };
    let server = Server::bind(context, state, options).await?;
    let (address, shutdown) = (server.address(), Shutdown::new());
    let running = tokio::spawn(server.run(shutdown.clone()));
    Ok(LocalServer { address, shutdown, running })
}

/// Serves a new file, prints the address, and stops when stdin is closed.
pub(crate) async fn run(path: &Path) -> Result<(), Failure> {
    let server = serve_locally(path).await?;
    println!("{}", server.address);
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    server.stop().await
}

/// A server in a child process, so that its memory can be measured.
pub(super) struct ServerProcess {
    pub(super) address: SocketAddr,
    child: tokio::process::Child,
}

impl ServerProcess {
    pub(super) async fn start(path: &Path) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve-in-this-process")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("the server process has no stdout")?;
        BufReader::new(stdout).read_line(&mut line).await?;
        Ok(Self { address: line.trim().parse()?, child })
    }

    /// Stops it and returns its peak memory, in millions of bytes.
    pub(super) async fn stop(mut self) -> Result<f64, Failure> {
        let id = self.child.id().ok_or("the server process has ended early")?;
        let peak = peak_megabytes(&std::fs::read_to_string(format!("/proc/{id}/status"))?)
            .ok_or("/proc has no VmHWM; the memory of a process is measured on Linux only")?;
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        if !status.success() {
            return Err(format!("the server failed ({status})").into());
        }
        Ok(peak)
    }
}
