//! A Redis Cluster of a test's own, as a subject of the suite.

use std::sync::{Arc, Mutex};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::cluster::server::{Nodes, Setup};

use super::{HELPER, LEASES, PATIENT};

/// Three nodes that keep everything on disk.
pub fn cluster(row: &str, options: &str) -> Subject {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned).to_vec();
    let nodes = Nodes::start_with(Setup { arguments, ..Setup::default() });
    let [url, brief] = LEASES.map(|lease| format!("{}?{lease}&{PATIENT}{options}", nodes.url()));
    let nodes = Arc::new(Mutex::new(nodes));
    let with = |deed: fn(&mut Nodes)| {
        let nodes = nodes.clone();
        move || {
            let nodes = nodes.clone();
            async move { deed(&mut nodes.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(row, url)
        .briefly(brief)
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(|all| all.nodes.iter().for_each(|node| drop(node.command(&["FLUSHALL"])))))
        .restarted_by(with(Nodes::restart))
        .cut_by(
            with(|all| all.nodes.iter().for_each(|node| node.stop())),
            with(|all| all.nodes.iter().for_each(|node| node.go_on())),
        )
        .keeping(nodes)
}
