SELECT number FROM {locks} WHERE kind = $1 AND name = $2 AND number = $3 FOR KEY SHARE
