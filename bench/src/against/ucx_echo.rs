//! Echoes by UCX's active messages over posix shared memory, by a program of ours: the same work as the engine's echoes.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::leave::Folder;

use super::{
    Contender, Goal, Quantity, Setting,
    program::{PairSpec, Ready, Spec},
};
use crate::{error::BenchError, floors::Floors};

/// What its row is called.
pub(crate) const NAME: &str = "UCX active messages, echoed, posix";
/// What it is built from.
const SOURCE: &str = include_str!("ucx_echo.c");
/// The largest message it sends.
const BYTES_MAX: usize = 4096;
/// How a person builds it.
const BUILD: &str = "cc -O2 -o ucx_echo bench/src/against/ucx_echo.c -lucp -lucs";

/// The program, built.
#[derive(Debug)]
pub struct UcxEcho {
    setting: Setting,
    /// Where it lies, and where its two processes meet.
    folder: Folder,
}

impl UcxEcho {
    /// Builds it.
    ///
    /// # Errors
    /// Why it cannot take part, for people.
    pub(crate) fn build(setting: Setting) -> Result<Self, String> {
        if setting.bytes == 0 || setting.bytes > BYTES_MAX {
            return Err(format!("sends 1 to {BYTES_MAX} bytes"));
        }
        let folder = Folder::new().map_err(|error| format!("no folder to build it in: {error}"))?;
        let source = folder.path().join("ucx_echo.c");
        std::fs::write(&source, SOURCE).map_err(|error| format!("its source was not written: {error}"))?;
        let echo = Self { setting, folder };
        let mut compiler = Command::new("cc");
        compiler.arg("-O2").arg("-o").arg(echo.program()).arg(&source).args(["-lucp", "-lucs"]);
        match compiler.output() {
            Ok(built) if built.status.success() => Ok(echo),
            Ok(built) => Err(missing(&String::from_utf8_lossy(&built.stderr))),
            Err(error) => Err(missing(&format!("cc: {error}"))),
        }
    }

    /// Builds it for messages of `bytes`, its two processes on these cores.
    ///
    /// # Errors
    /// Why it cannot take part, for people.
    pub fn for_cores(bytes: usize, client_core: usize, server_core: usize) -> Result<Self, String> {
        Self::build(Setting { goal: Goal::Rate, bytes, window: 1, client_core, server_core, host: None })
    }

    /// Echoes per second of `count`, `window` at a time.
    ///
    /// # Errors
    /// Why there is no number.
    pub fn rate(&mut self, window: usize, count: u64) -> Result<f64, BenchError> {
        self.setting.window = window;
        self.run(count)
    }

    fn run(&self, count: u64) -> Result<f64, BenchError> {
        let socket = self.folder.path().join("socket");
        let (program, socket) = (self.program(), socket.to_string_lossy().into_owned());
        self.pair(&program.to_string_lossy(), &socket, count).run(parse)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("ucx_echo")
    }

    fn pair(&self, program: &str, socket: &str, count: u64) -> PairSpec {
        let Setting { bytes, window, client_core, server_core, .. } = self.setting;
        let spec = |args: &[&str], core| Spec {
            program: program.to_owned().into(),
            args: args.iter().map(|argument| (*argument).to_owned()).collect(),
            env: vec![("UCX_TLS", "posix,self".to_owned()), ("UCX_LOG_LEVEL", "error".to_owned())],
            core,
        };
        let [bytes, window] = [bytes, window].map(|number| number.to_string());
        PairSpec {
            server: spec(&["server", socket], server_core),
            client: spec(&["client", socket, &bytes, &window, &count.to_string()], client_core),
            ready: Ready::Says("ready"),
            limit: Duration::from_secs(60),
        }
    }
}

/// What a failed build says, and what brings what it lacks.
fn missing(said: &str) -> String {
    let why = said.lines().find(|line| line.contains("error")).or_else(|| said.lines().next()).unwrap_or("");
    format!("not built: apt-get install gcc libucx-dev ({})", why.trim())
}

fn parse(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("echoes_per_second ")?.trim().parse().ok())
}

impl Contender for UcxEcho {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn label(&self) -> &'static str {
        "echoes per second"
    }

    fn quantity(&self) -> Quantity {
        Quantity::PerSecond
    }

    fn commands(&self, count: u64) -> Vec<String> {
        let mut lines = vec![BUILD.to_owned()];
        lines.extend(self.pair("./ucx_echo", "/tmp/ucx_echo.socket", count).lines());
        lines
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        self.run(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(bytes: usize) -> Setting {
        Setting { goal: Goal::Rate, bytes, window: 32, client_core: 0, server_core: 1, host: None }
    }

    #[test]
    fn both_are_told_the_same() {
        let echo = UcxEcho { setting: setting(64), folder: Folder::new().unwrap() };
        let lines = echo.commands(1000);
        assert_eq!(lines.len(), 3);
        let env = "UCX_TLS=posix,self UCX_LOG_LEVEL=error taskset -c";
        assert_eq!(lines[1], format!("{env} 1 ./ucx_echo server /tmp/ucx_echo.socket"));
        assert_eq!(lines[2], format!("{env} 0 ./ucx_echo client /tmp/ucx_echo.socket 64 32 1000"));
    }

    #[test]
    fn what_it_cannot_do_is_said() {
        assert!(UcxEcho::build(setting(1 << 20)).unwrap_err().contains("1 to 4096"));
        let said = missing("ucx_echo.c:1:10: fatal error: ucp/api/ucp.h: No such file\n#include\n");
        assert!(said.contains("libucx-dev (ucx_echo.c:1:10: fatal error"), "{said}");
        assert_eq!(parse("ready\nechoes_per_second 10624511\n"), Some(10_624_511.0));
        assert_eq!(parse("ucx_echo: sending: no\n"), None);
    }
}
