-- Takes it away. KEYS: key
return {'D', string.format('%.0f', redis.call('DEL', KEYS[1]))}
