//! Certificates for servers that speak TLS.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority (`ca.pem`), another one (`other.pem`), and certificates of the first for
/// `localhost`: `server.pem` and `client.pem`, with their keys. Answers the directory in which they
/// are.
///
/// # Panics
/// When openssl is missing or fails.
pub fn make(dir: &Path) -> PathBuf {
    let dir = dir.join("tls");
    std::fs::create_dir(&dir).expect("a fresh directory");
    let script = "
        set -e
        for ca in ca other; do
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
                -subj /CN=$ca -keyout $ca.key -out $ca.pem
        done
        for who in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj \
                /CN=localhost -keyout $who.key -out $who.csr
            printf 'subjectAltName=DNS:localhost\\n' > $who.ext
            openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
                -extfile $who.ext -out $who.pem
        done";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(&dir)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    dir
}
