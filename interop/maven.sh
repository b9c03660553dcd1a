# Compiles the Java program of the directory $here, named $1, and says where its classes are; with
# $2 against that version of the library, which the program's pom.xml calls $1.version.
target="$here/../../target/interop/$1${2:+-$2}"
mkdir -p "$target"
cp -r "$here/pom.xml" "$here/src" "$target/"
(cd "$target" && mvn --batch-mode \
    --quiet ${2:+-D"$1.version=$2"} compile dependency:build-classpath -Dmdep.outputFile=classpath)
CLASSES="$target/target/classes:$(cat "$target/classpath")"
export CLASSES
