//! Passwords that are changed while locks are held and waited for (B2).
#![cfg(all(
    feature = "redis",
    feature = "sentinel",
    feature = "cluster",
    feature = "redlock",
    feature = "zookeeper",
    feature = "postgres"
))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{Error, Guard, Kind, Locks};
use lockkeeper_testkit::cluster::server::Nodes;
use lockkeeper_testkit::postgres::server::PostgresServer;
use lockkeeper_testkit::proxy as link;
use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};
use lockkeeper_testkit::zookeeper::proxy::Proxy;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use tokio::task::JoinHandle;

/// How long anything may take that only hangs where it takes long.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many holds live through a rotation, and how many waiters.
const HOLDS: usize = 20;

/// How soon a condition is looked at again.
const AGAIN: Duration = Duration::from_millis(10);

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is().await {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(AGAIN).await;
    }
}

/// A password's file.
struct Secret(tempfile::TempDir);

impl Secret {
    fn new(content: &str) -> Self {
        let secret = Self(tempfile::tempdir().unwrap());
        secret.set(content);
        secret
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("secret")
    }

    /// As one is to write it: whole, or not at all.
    fn set(&self, content: &str) {
        let next = self.0.path().join("next");
        std::fs::write(&next, content).unwrap();
        std::fs::rename(&next, self.path()).unwrap();
    }
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Two processes: in one are the holders, in the other one a waiter for each hold.
struct People {
    holds: Locks,
    waits: Locks,
    guards: Vec<Guard>,
    waiters: Vec<JoinHandle<Result<Guard, Error>>>,
}

fn name(nth: usize) -> String {
    format!("n{nth}")
}

impl People {
    /// `stand`: all of them are in line.
    async fn of(holds: Locks, waits: Locks, mut stand: impl AsyncFnMut(&Locks) -> bool) -> Self {
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for nth in 0..HOLDS {
            guards.push(holds.mutex(name(nth)).lock().await.unwrap());
            let mutex = waits.mutex(name(nth));
            waiters.push(tokio::spawn(async move { mutex.lock().await }));
        }
        until("they stand in line", async || stand(&waits).await).await;
        Self { holds, waits, guards, waiters }
    }

    /// As engines with a line tell it.
    async fn in_line(holds: Locks, waits: Locks) -> Self {
        let stand = async |locks: &Locks| {
            let mut all = true;
            for nth in 0..HOLDS {
                let status = locks.status(Kind::Lock, &name(nth)).await;
                all &= status.is_ok_and(|status| !status.waiters.is_empty());
            }
            all
        };
        Self::of(holds, waits, stand).await
    }

    /// Waits until a server has answered, to each process, what was asked after this was called:
    /// each hold is renewed, and what releases and who waits go by is there again.
    async fn renewed(&self) {
        // The first renewal may have been under way.
        for _ in 0..2 {
            let left = |guard: &Guard| guard.remaining().expect("it has a lease");
            let mut least: Vec<_> = self.guards.iter().map(left).collect();
            let mut renewed = [false; HOLDS];
            until("each is renewed", async || {
                for ((guard, least), renewed) in
                    self.guards.iter().zip(&mut least).zip(&mut renewed)
                {
                    guard.check().expect("no hold is lost");
                    guard.held().renew_now();
                    // Less and less is left, unless it is renewed.
                    let now = left(guard);
                    *renewed |= now > *least;
                    *least = now.min(*least);
                }
                renewed == [true; HOLDS]
            })
            .await;
        }
        for guard in &self.guards {
            until("it is verified", async || guard.verify().await.is_ok()).await;
        }
        let stands = async || self.waits.status(Kind::Lock, name(0)).await.is_ok();
        until("who waits is answered", stands).await;
    }

    /// Every lock is handed on, and nobody's was lost.
    async fn handed_on(self) {
        for (guard, waiter) in self.guards.into_iter().zip(self.waiters) {
            assert!(!waiter.is_finished(), "BROKEN LOCK: granted while it is held");
            let token = guard.token().ok();
            guard.check().unwrap();
            let released = guard.release().await;
            assert!(released.is_clean(), "{released:?}");
            let next = waiter.await.unwrap().expect("who waits goes on waiting");
            assert!(next.token().ok() > token, "BROKEN LOCK: a token went back");
        }
        drop((self.holds.close().await, self.waits.close().await));
    }
}

/// Ends our connections, and not those of others.
fn cut(admin: &mut RedisClient) {
    for line in admin.command(&["CLIENT", "LIST"]).concat().lines() {
        if line.contains(" name=lockkeeper:") {
            let id = line.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
            admin.command(&["CLIENT", "KILL", "ID", id]);
        }
    }
}

/// How often one connection may try a password that was accepted before.
fn tries(began: Instant) -> usize {
    let seconds = began.elapsed().as_secs() as usize;
    1 + usize::from(seconds >= 5) + seconds / 30
}

/// How often a server was given a wrong password.
fn wrong_passwords(admin: &mut RedisClient) -> usize {
    let log = admin.command(&["ACL", "LOG"]);
    let count = |at: usize| log.get(at + 1).and_then(|count| count.parse::<usize>().ok());
    (0..log.len()).filter(|at| log[*at] == "count").filter_map(count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_on_redis_a_rotation_costs_no_hold_and_no_waiter_whichever_side_is_changed_first() {
    let server = RedisServer::start_with(&["--requirepass", "old"]);
    let mut admin = server.client();
    assert_eq!(admin.command(&["AUTH", "old"]), ["OK"]);
    let secret = Secret::new("old\n");
    let file = option("password_file", &secret.path());
    let url = format!("redis://127.0.0.1:{}?ttl=30s&{file}", server.port());
    let open = async || Locks::open(&url).await;
    let people = People::in_line(open().await.unwrap(), open().await.unwrap()).await;

    // The server first: it is known that they were refused before the file has the new one.
    admin.command(&["CONFIG", "SET", "requirepass", "new"]);
    let began = Instant::now();
    cut(&mut admin);
    until("they are refused", async || wrong_passwords(&mut admin) > 0).await;
    let error = open().await.unwrap_err();
    assert!(!error.is_temporary() && error.message().contains("does not accept"), "{error}");
    secret.set("new\n");
    people.renewed().await;
    let refused = wrong_passwords(&mut admin);
    // Two connections of each of two processes, and the one that was opened in between. No more but
    // where the machine took its time.
    let most = 5 * tries(began);
    assert!(refused <= most, "{refused} wrong passwords in {:?}", began.elapsed());

    // The file first, and connections break before and after the server has changed.
    secret.set("newest\n");
    cut(&mut admin);
    people.renewed().await;
    admin.command(&["CONFIG", "SET", "requirepass", "newest"]);
    cut(&mut admin);
    people.renewed().await;
    drop(open().await.unwrap());
    people.handed_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_a_server_with_a_certificate_of_another_authority_is_waited_for_until_that_is_trusted() {
    let home = tempfile::tempdir().unwrap();
    let made = lockkeeper_testkit::servers::certificates::make(home.path());
    let sign = "openssl x509 -req -in server.csr -CA other.pem -CAkey other.key -CAcreateserial \
                -days 30 -extfile server.ext -out next.pem";
    let signed = Command::new("sh").args(["-c", sign]).current_dir(&made).output().unwrap();
    assert!(signed.status.success(), "{}", String::from_utf8_lossy(&signed.stderr));
    let (server, port) = RedisServer::start_with_tls(&made, &["--tls-auth-clients", "no"]);
    let trusted = Secret::new(&std::fs::read_to_string(made.join("ca.pem")).unwrap());
    let (link, file) = (link::Proxy::to(port), option("tls_ca", &trusted.path()));
    let url = format!("rediss://localhost:{}?ttl=20s&{file}", link.port());
    let open = async || Locks::open(&url).await;
    let people = People::in_line(open().await.unwrap(), open().await.unwrap()).await;
    let mut admin = server.client();
    let next = ["CONFIG", "SET", "tls-cert-file", &made.join("next.pem").display().to_string()];
    assert_eq!(admin.command(&next), ["OK"]);
    let before = link.accepted();
    cut(&mut admin);
    until("it is dialled again and again", async || link.accepted() > before + 6).await;
    trusted.set(&std::fs::read_to_string(made.join("other.pem")).unwrap());
    people.renewed().await;
    people.handed_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_on_postgres_a_rotation_costs_no_hold_and_no_waiter_whichever_side_is_changed_first() {
    let server = PostgresServer::start();
    server.sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'old'");
    let asks = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.dir().join("data/pg_hba.conf"), asks).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let secret = Secret::new("old\n");
    let file = option("password_file", &secret.path());
    let url = format!("postgres://app@127.0.0.1:{}/postgres?ttl=30s&{file}", server.port());
    let open = async || Locks::open(&url).await;
    let wrong = Secret::new("wrong\n");
    let wrong = url.replace(&file, &option("password_file", &wrong.path()));
    until("passwords are asked for", async || Locks::open(&wrong).await.is_err()).await;
    let people = People::in_line(open().await.unwrap(), open().await.unwrap()).await;
    let refused =
        || server.log().matches("FATAL:  password authentication failed for user").count();
    let cut = || {
        let ours = "FROM pg_stat_activity WHERE usename = 'app'";
        server.sql(&format!("SELECT pg_terminate_backend(pid) {ours}"));
    };

    let (before, began) = (refused(), Instant::now());
    server.sql("ALTER ROLE app PASSWORD 'new'");
    cut();
    until("they are refused", async || refused() > before).await;
    let error = open().await.unwrap_err();
    assert!(!error.is_temporary() && error.message().contains("refuses"), "{error}");
    secret.set("new\n");
    people.renewed().await;
    // One connection of each of two processes, and the one that was opened in between.
    let (refused, most) = (refused() - before, 3 * tries(began));
    assert!(refused <= most, "{refused} wrong passwords in {:?}", began.elapsed());

    secret.set("newest\n");
    cut();
    people.renewed().await;
    server.sql("ALTER ROLE app PASSWORD 'newest'");
    cut();
    people.renewed().await;
    drop(open().await.unwrap());
    people.handed_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_on_a_quorum_a_rotation_member_by_member_costs_no_hold_and_no_waiter() {
    // Members of its own need not be waited for.
    Locks::register(lockkeeper::redlock_laboratory()).unwrap();
    let members: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = members.iter().map(|m| format!("127.0.0.1:{}", m.port())).collect();
    let url = format!("redlock-lab://{}?ttl=20s&server_timeout=1s", hosts.join(","));
    let mut admins: Vec<RedisClient> = members.iter().map(RedisServer::client).collect();
    let admits = Locks::open(&url).await.unwrap();
    for admin in &mut admins {
        until("it counts", async || {
            let run = admin.command(&["HGET", "lockkeeper:redlock", "run"]).concat();
            run.len() == 40 && admin.command(&["INFO", "server"]).concat().contains(&run)
        })
        .await;
    }
    drop(admits.close().await);
    let secret = Secret::new("old\n");
    for admin in &mut admins {
        admin.command(&["CONFIG", "SET", "requirepass", "old"]);
        assert_eq!(admin.command(&["AUTH", "old"]), ["OK"]);
    }
    let url = format!("{url}&{}", option("password_file", &secret.path()));
    let open = async || Locks::open(&url).await;
    // A quorum has no line: who waits listens.
    let mut first = members[0].client();
    assert_eq!(first.command(&["AUTH", "old"]), ["OK"]);
    let listen = async |_: &Locks| first.command(&["PUBSUB", "CHANNELS"]).len() >= HOLDS;
    let people = People::of(open().await.unwrap(), open().await.unwrap(), listen).await;

    // One is changed after the other, and the file once a majority has been.
    for (nth, admin) in admins.iter_mut().enumerate() {
        admin.command(&["CONFIG", "SET", "requirepass", "new"]);
        cut(admin);
        until("they are refused", async || wrong_passwords(admin) > 0 || nth == 2).await;
        if nth == 1 {
            secret.set("new\n");
        }
    }
    people.renewed().await;
    for admin in &mut admins {
        until("all members are used again", async || {
            let clients = admin.command(&["CLIENT", "LIST"]).concat();
            clients.matches(" name=lockkeeper:").count() >= 2
        })
        .await;
    }
    people.handed_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_behind_sentinels_both_passwords_are_changed_and_no_hold_and_no_waiter_is_lost() {
    let setup = Setup {
        down_after: Duration::from_secs(600),
        password: Some("old".into()),
        sentinel_password: Some("old-watch".into()),
        ..Setup::default()
    };
    let deployment = Deployment::start_with(setup);
    let (secret, watch) = (Secret::new("old\n"), Secret::new("old-watch\n"));
    let files =
        [option("password_file", &secret.path()), option("sentinel_password_file", &watch.path())];
    let hosts: Vec<String> =
        deployment.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let url = format!("redis+sentinel://{}/mymaster?ttl=20s&{}", hosts.join(","), files.join("&"));
    let open = async || Locks::open(&url).await;
    let people = People::in_line(open().await.unwrap(), open().await.unwrap()).await;

    let login = |server: &RedisServer, password: &str| {
        let mut admin = server.client();
        assert_eq!(admin.command(&["AUTH", password]), ["OK"]);
        admin
    };
    let mut watchers: Vec<_> =
        deployment.sentinels.iter().map(|server| login(server, "old-watch")).collect();
    let mut servers: Vec<_> =
        deployment.servers.iter().map(|server| login(server, "old")).collect();
    for watcher in &mut watchers {
        let set = ["SENTINEL", "SET", "mymaster", "auth-pass", "new"];
        assert_eq!(watcher.command(&set), ["OK"]);
        let set = ["ACL", "SETUSER", "default", "resetpass", ">new-watch"];
        assert_eq!(watcher.command(&set), ["OK"]);
    }
    for server in &mut servers {
        server.command(&["CONFIG", "SET", "masterauth", "new"]);
        server.command(&["CONFIG", "SET", "requirepass", "new"]);
    }
    for admin in watchers.iter_mut().chain(&mut servers) {
        cut(admin);
    }
    for watcher in &mut watchers {
        until("the Sentinels refuse", async || wrong_passwords(watcher) > 0).await;
    }
    // As on a machine where the two files are written one after the other.
    watch.set("new-watch\n");
    until("the master refuses", async || wrong_passwords(&mut servers[0]) > 0).await;
    secret.set("new\n");
    people.renewed().await;
    drop(open().await.unwrap());
    people.handed_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_on_a_cluster_a_rotation_of_all_nodes_costs_no_hold_and_no_waiter() {
    let nodes = Nodes::start();
    let mut admins: Vec<RedisClient> = nodes.nodes.iter().map(RedisServer::client).collect();
    let mut set = |password: &str| {
        for admin in &mut admins {
            admin.command(&["CONFIG", "SET", "requirepass", password]);
            assert_eq!(admin.command(&["AUTH", password]), ["OK"]);
        }
    };
    set("old");
    let secret = Secret::new("old\n");
    let url = format!("{}?ttl=20s&{}", nodes.url(), option("password_file", &secret.path()));
    let open = async || Locks::open(&url).await;
    let people = People::in_line(open().await.unwrap(), open().await.unwrap()).await;
    set("new");
    for admin in &mut admins {
        cut(admin);
    }
    for admin in &mut admins {
        until("they are refused", async || wrong_passwords(admin) > 0).await;
    }
    secret.set("new\n");
    people.renewed().await;
    drop(open().await.unwrap());
    people.handed_on().await;
}

/// Nothing of it is refused: a digest that nobody knows is an identity, too. What counts is which
/// one a connection has, and what the nodes allow to whom.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_on_zookeeper_a_connection_takes_on_what_the_file_says_and_no_hold_is_lost() {
    let server = Server::start(Settings::default()).unwrap();
    let proxies = [(); 2].map(|()| Proxy::start(server.port()).unwrap());
    let secret = Secret::new("digest:app:old\n");
    let to = |port: u16, file: &Secret| {
        let file = option("auth_file", &file.path());
        format!("zk://127.0.0.1:{port}?session_timeout=20s&acl=auth::cdrwa&{file}")
    };
    let [one, two] = proxies.each_ref().map(|proxy| to(proxy.port(), &secret));
    let [one, two] = [Locks::open(&one).await.unwrap(), Locks::open(&two).await.unwrap()];
    let people = People::in_line(one, two).await;

    // Both identities first, and every connection anew.
    secret.set("digest:app:old\ndigest:app:new\n");
    let connects = proxies.each_ref().map(Proxy::connects);
    proxies.iter().for_each(Proxy::cut);
    for (proxy, before) in proxies.iter().zip(connects) {
        until("they are connected anew", async || proxy.connects() > before).await;
    }
    people.renewed().await;
    let later = people.holds.mutex("later").lock().await.unwrap();

    // Who has the new one alone stands in line behind who has both.
    let only = Secret::new("digest:app:new\n");
    let third = Locks::open(&to(server.port(), &only)).await.unwrap();
    let mutex = third.mutex("later");
    let waits = tokio::spawn(async move { mutex.lock().await });
    until("it stands in line", async || {
        let status = people.holds.status(Kind::Lock, "later").await.unwrap();
        !status.waiters.is_empty() && status.holders.iter().any(|h| h.pid.is_some())
    })
    .await;
    let token = later.token().unwrap();
    assert!(later.release().await.is_clean());
    let next = waits.await.unwrap().unwrap();
    assert!(next.token().unwrap() > token, "BROKEN LOCK: a token went back");
    drop(next);
    people.handed_on().await;
    drop(third.close().await);
}
