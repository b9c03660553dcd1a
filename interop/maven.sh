# Compiles the Java program of the directory $here, named $1, and says where its classes are.
target="$here/../../target/interop/$1"
mkdir -p "$target"
cp -r "$here/pom.xml" "$here/src" "$target/"
(cd "$target" && mvn --batch-mode --quiet compile dependency:build-classpath -Dmdep.outputFile=classpath)
CLASSES="$target/target/classes:$(cat "$target/classpath")"
export CLASSES
