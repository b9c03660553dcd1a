# Builds the program that the drivers hold locks with, and says where it is.
cargo build --quiet --package lockkeeper --features redis,zookeeper --example hold \
    --example ten_contenders --example convert
HOLD="$(cargo metadata --no-deps --format-version 1 |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/examples/hold"
export HOLD
