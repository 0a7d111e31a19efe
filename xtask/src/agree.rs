//! What the bench prints of other programs, beside what they print themselves, started by hand: same cores, same size, in
//! turns. On shared memory here; over rxe and siw inside the lab.

use std::{env, fs, io, process::Stdio, thread, time::Duration};

use regex::Regex;

use crate::{
    checks::{Checks, bounded, run as output},
    page::bench,
};

/// How a program prints its number: a round trip in nanoseconds, or messages in a second.
#[derive(Clone, Copy, Debug)]
enum Number {
    UcxLatency,
    UcxRate,
    PingPong,
    PerftestLatency,
    PerftestRate,
}

impl Number {
    fn read(self, text: &str) -> Option<f64> {
        let number = |word: &str| word.trim().parse::<f64>().ok();
        let csv = |column: usize| {
            let rows = text.lines().skip_while(|line| !line.starts_with("iterations,")).skip(1);
            let row =
                rows.filter(|line| line.split(',').next().is_some_and(|it| it.trim().parse::<u64>().is_ok()));
            number(row.last()?.split(',').nth(column)?)
        };
        let columns = |least: usize, most: usize, column: usize| {
            let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let mut rows = words.filter(|it| it.first() == Some(&"64") && (least..=most).contains(&it.len()));
            number(rows.next_back()?[column])
        };
        match self {
            Self::UcxLatency => csv(1).map(|half_us| half_us * 2000.0),
            Self::UcxRate => csv(7),
            Self::PingPong => columns(7, usize::MAX, 6).map(|half_us| half_us * 2000.0),
            Self::PerftestLatency => columns(9, usize::MAX, 4).map(|half_us| half_us * 2000.0),
            Self::PerftestRate => columns(5, 5, 4).map(|millions| millions * 1e6),
        }
    }
}

/// One program, by the bench and by hand. `{port}` in the arguments is a port that nobody has used.
#[derive(Debug)]
struct Case {
    name: String,
    limit_pct: f64,
    program: &'static str,
    number: Number,
    /// Of the bench.
    ours: String,
    server: String,
    client: String,
    environment: &'static [(&'static str, &'static str)],
}

const UCX_SHM: &[(&str, &str)] = &[("UCX_LOG_LEVEL", "error"), ("UCX_TLS", "posix,self")];
/// The first address of rxe that is IPv6: over IPv4 the two sides of UCX do not find each other.
const UCX_RXE: &[(&str, &str)] = &[
    ("UCX_LOG_LEVEL", "error"),
    ("UCX_NET_DEVICES", "rxe0:1"),
    ("UCX_TLS", "rc_verbs,ud_verbs,self"),
    ("UCX_IB_GID_INDEX", "0"),
];

/// Compares each program whose case's name fits `pattern`, `pairs` times. Whether all agree.
///
/// # Errors
/// The pattern is none.
pub fn run(pairs: u32, pattern: &str) -> io::Result<bool> {
    let pattern = Regex::new(pattern).map_err(io::Error::other)?;
    let in_lab = env::var_os("GIMMAL_LAB").is_some();
    let count = env::var("COUNT").ok().and_then(|count| count.parse().ok());
    let count: u32 = count.unwrap_or(if in_lab { 500 } else { 100_000 });
    let mut checks = Checks::default();
    let cases = if in_lab { on_devices(count)? } else { on_shm(count) };
    let mut port = 20_000 + u16::try_from(std::process::id() % 20_000).unwrap_or(0);
    for case in cases.iter().filter(|case| pattern.is_match(&case.name)) {
        if checks.has(case.program, 1) {
            checks.add(&case.name, case.compare(pairs, &mut port));
        }
    }
    if in_lab {
        checks.add("UCX has no iWARP, and its row says so", no_iwarp());
    }
    Ok(checks.sum())
}

fn case(name: &str, limit_pct: f64, program: &'static str, number: Number) -> Case {
    let [ours, server, client] = [(); 3].map(|()| String::new());
    Case { name: name.to_owned(), limit_pct, program, number, ours, server, client, environment: &[] }
}

fn on_shm(count: u32) -> Vec<Case> {
    // One-way messages take a tenth of a round trip; fewer would be over within one state of the host.
    let messages = 10 * count;
    let ucx = |what: &str, count: u32| {
        let warm_up = count / 10;
        format!("127.0.0.1 -p {{port}} -t {what} -s 64 -n {count} -w {warm_up} -f -v")
    };
    vec![
        Case {
            ours: format!("lat --cpus 0,1 -n {count} --against ucx"),
            server: "-p {port}".to_owned(),
            client: ucx("ucp_am_lat", count),
            environment: UCX_SHM,
            ..case("ucx_perftest ucp_am_lat, posix", 10.0, "ucx_perftest", Number::UcxLatency)
        },
        Case {
            ours: format!("rate --cpus 0,1 -n {messages} -O 32 --against ucx"),
            server: "-p {port}".to_owned(),
            client: ucx("ucp_am_bw", messages) + " -O 32",
            environment: UCX_SHM,
            ..case("ucx_perftest ucp_am_bw, posix", 10.0, "ucx_perftest", Number::UcxRate)
        },
        Case {
            ours: format!("lat --cpus 0,1 -n {count} --against libfabric"),
            server: format!("-p shm -e rdm -I {count} -S 64 -B {{port}}"),
            client: format!("-p shm -e rdm -I {count} -S 64 -P {{port}} 127.0.0.1"),
            ..case("fi_pingpong, shm", 10.0, "fi_pingpong", Number::PingPong)
        },
    ]
}

fn on_devices(count: u32) -> io::Result<Vec<Case>> {
    let messages = 10 * count;
    let mut cases = Vec::new();
    let ours = |host: &str, what: &str, count: u32, more: &str| {
        format!("{what} --cpus 0,1 --provider verbs --address rdma://{host}:0 --warmup 10 -n {count} {more}")
    };
    for (fabric, variable) in [("rxe", "GIMMAL_RXE_ADDR"), ("siw", "GIMMAL_SIW_ADDR")] {
        let host = env::var(variable).map_err(|_| io::Error::other(format!("{variable} is not set")))?;
        let latency = format!("-R -F -p {{port}} -s 64 -n {count}");
        cases.push(Case {
            ours: ours(&host, "lat", count, "--against perftest"),
            client: format!("{latency} {host}"),
            server: latency,
            ..case(&format!("ib_send_lat, {fabric}"), 20.0, "ib_send_lat", Number::PerftestLatency)
        });
        let rate = format!("-R -F -p {{port}} -s 64 -n {messages} -t 32");
        cases.push(Case {
            ours: ours(&host, "rate", messages, "-O 32 --against perftest"),
            client: format!("{rate} {host}"),
            server: rate,
            ..case(&format!("ib_send_bw, {fabric}"), 20.0, "ib_send_bw", Number::PerftestRate)
        });
        // It does not warm up, and prints a mean: with few messages that is one of its start.
        let pingpong = format!("-p verbs -e msg -I {messages} -S 64");
        cases.push(Case {
            ours: ours(&host, "lat", messages, "--against libfabric"),
            server: format!("{pingpong} -B {{port}}"),
            client: format!("{pingpong} -P {{port}} {host}"),
            ..case(&format!("fi_pingpong, verbs, {fabric}"), 20.0, "fi_pingpong", Number::PingPong)
        });
        if fabric == "rxe" {
            let warm_up = count / 10;
            cases.push(Case {
                ours: ours(&host, "lat", count, "--against ucx"),
                server: "-p {port}".to_owned(),
                client: format!("{host} -p {{port}} -t ucp_am_lat -s 64 -n {count} -w {warm_up} -f -v"),
                environment: UCX_RXE,
                ..case("ucx_perftest ucp_am_lat, rc_verbs, rxe", 20.0, "ucx_perftest", Number::UcxLatency)
            });
        }
    }
    Ok(cases)
}

impl Case {
    /// The median of the bench's number over the program's own; an error when it is off by more than the limit.
    fn compare(&self, pairs: u32, port: &mut u16) -> io::Result<String> {
        let (mut ratios, mut text) = (Vec::new(), String::new());
        for pair in 1..=pairs {
            *port += 3;
            // A B, B A: what drifts one way cancels.
            let first = if pair % 2 == 0 { Some(self.in_the_bench()?) } else { None };
            let by_hand = self.by_hand(*port)?;
            let in_the_bench = first.map_or_else(|| self.in_the_bench(), Ok)?;
            text += &format!("pair {pair}: in the bench {in_the_bench:.0}, by hand {by_hand:.0}\n");
            ratios.push(in_the_bench / by_hand);
        }
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        let median = (ratios[(ratios.len() - 1) / 2] + ratios[ratios.len() / 2]) / 2.0;
        text += &format!(
            "in the bench over by hand: median {median:.3} ({low:.3} to {high:.3}, {pairs} pairs), limit {} %",
            self.limit_pct
        );
        if (median - 1.0).abs() * 100.0 > self.limit_pct { Err(io::Error::other(text)) } else { Ok(text) }
    }

    /// The value of the row that begins with the program's name.
    fn in_the_bench(&self) -> io::Result<f64> {
        let bench = bench();
        let words = [&*bench].into_iter().chain(self.ours.split_whitespace());
        let words: Vec<&str> = words.chain(["--loopback", "--pairs", "1", "--json"]).collect();
        let record: serde_json::Value = serde_json::from_str(&output(120, &words, self.environment)?)?;
        let rows = record["rows"].as_array().into_iter().flatten();
        let mut ours =
            rows.filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with(self.program)));
        let value = ours.find_map(|row| row["value"].as_f64());
        value.ok_or_else(|| io::Error::other(format!("the bench printed no number of {}", self.program)))
    }

    /// The program's own number; its server is on core 1, its client on core 0.
    fn by_hand(&self, port: u16) -> io::Result<f64> {
        let words = |core: &'static str, arguments: &str| {
            let arguments = arguments.replace("{port}", &port.to_string());
            let words = ["taskset", "-c", core, self.program].map(str::to_owned).into_iter();
            words.chain(arguments.split_whitespace().map(str::to_owned)).collect::<Vec<_>>()
        };
        let (server, client) = (words("1", &self.server), words("0", &self.client));
        let [server, client] =
            [&server, &client].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
        let mut server = bounded(100, &server, self.environment);
        let mut server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // Both of a pair are to meet the same state of the host: no second is spent waiting.
        for _ in 0..100 {
            if listening(port) {
                break;
            }
            thread::sleep(Duration::from_millis(30));
        }
        let printed = output(90, &client, self.environment);
        // By its own signal, so that the program under it ends too.
        let pid = rustix::process::Pid::from_child(&server);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = server.wait();
        let printed = printed?;
        let number = self.number.read(&printed);
        number.ok_or_else(|| io::Error::other(format!("{} printed no number:\n{printed}", self.program)))
    }
}

/// Whether somebody listens on `port`, over TCP or the CM.
fn listening(port: u16) -> bool {
    let by_tcp = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .any(|file| listed(&fs::read_to_string(file).unwrap_or_default(), port));
    by_tcp || {
        let ids = output(5, &["rdma", "resource", "show", "cm_id"], &[]).unwrap_or_default();
        ids.lines().any(|line| line.contains("LISTEN ") && line.contains(&format!(":{port} ")))
    }
}

/// Whether a table in the form of /proc/net/tcp has a listener (state 0A) at `port`.
fn listed(table: &str, port: u16) -> bool {
    let ends = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&ends)) && words.nth(1) == Some("0A")
    })
}

fn no_iwarp() -> io::Result<String> {
    let bench = bench();
    let address = format!("rdma://{}:0", env::var("GIMMAL_SIW_ADDR").unwrap_or_default());
    let words =
        "lat --provider verbs --loopback -n 20 --warmup 2 --pairs 1 --against ucx --address".split(' ');
    let words: Vec<&str> = [&*bench].into_iter().chain(words).chain([&*address]).collect();
    let text = output(120, &words, &[])?;
    let said = text.lines().find(|line| line.contains("UCX has no iWARP"));
    said.map(str::to_owned).ok_or_else(|| io::Error::other(text.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_s_number_is_found() {
        let ucx = "+--+\niterations,50.0_percentile_lat,avg_lat,o,bw,obw,r,or\n 1000,0.5,0.6,0.6,1,1,1900,1900\n\
                   2000,0.4,0.6,0.6,1,1,2000,2100\n";
        assert_eq!(Number::UcxLatency.read(ucx), Some(800.0));
        assert_eq!(Number::UcxRate.read(ucx), Some(2100.0));
        let pingpong =
            "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n64 1k =1k 125k 0.01s 57.50 1.11 0.90\n";
        assert_eq!(Number::PingPong.read(pingpong), Some(2220.0));
        let latency =
            " #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%\n 64 500 1 9 2.5 3 0.1 4 5\n";
        assert_eq!(Number::PerftestLatency.read(latency), Some(5000.0));
        let rate = " #bytes #iterations BW peak BW average MsgRate[Mpps]\n 64 5000 10.0 9.0 0.15\n";
        assert_eq!(Number::PerftestRate.read(rate), Some(150_000.0));
        assert_eq!(Number::PerftestRate.read("nothing"), None);
    }

    #[test]
    fn only_a_listener_at_the_port_is_listed() {
        let table = "  sl  local_address rem_address   st\n   \
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:1F91 0100007F:1F92 01 00000000:00000000\n";
        assert!(listed(table, 0x1f90));
        assert!(!listed(table, 0x1f91) && !listed(table, 0x1f92), "a connection is no listener");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening(listener.local_addr().unwrap().port()));
    }
}
