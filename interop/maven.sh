# Compiles the Java program of the directory $here, named $1, and says where its classes are; with
# $2 against that version of the library, which the program's pom.xml calls $1.version.
target="$(dirname "${BASH_SOURCE[0]}")/../target/interop/$1${2:+-$2}"
mkdir -p "$target"
if ! diff -qr "$here/src" "$target/src" > "$target/news" 2>&1 ||
    ! cmp --silent "$here/pom.xml" "$target/pom.xml" || ! [ -s "$target/classpath" ]; then
    rm -rf "$target/src" "$target/classpath"
    cp -r "$here/pom.xml" "$here/src" "$target/"
    (cd "$target" && mvn --batch-mode \
        --quiet ${2:+-D"$1.version=$2"} compile dependency:build-classpath \
        -Dmdep.outputFile=classpath)
fi
CLASSES="$target/target/classes:$(cat "$target/classpath")"
export CLASSES
