# Source this from the project's root to run .venv/bin/leasehold by hand as the make targets do.
if [ -x .tools/java/bin/java ]; then
  export JAVA_HOME="$PWD/.tools/java"
fi
# Spark would start its Python workers with whatever python3 is first on the PATH ...
export PYSPARK_PYTHON="$PWD/.venv/bin/python"
# ... and listen on every interface.
export SPARK_LOCAL_IP=127.0.0.1
