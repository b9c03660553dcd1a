# Builds the program that the drivers hold locks with, and says where it is. With all features, as
# tests do: so nothing is compiled twice.
cargo build --quiet --workspace --all-features --example hold --example ten_contenders \
    --example convert
HOLD="$(cargo metadata --no-deps --format-version 1 |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/examples/hold"
export HOLD
