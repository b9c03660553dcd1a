'use strict';

// See peers.py. Its arguments are the members.

const readline = require('readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

const TTL_MS = 20000;
const connect = (options) => process.argv.slice(2).map((host) => {
    return new Redis(`redis://${host}`, options);
});
// What is sent together is faster for many callers, and slower for one.
const [single, crowd] = [connect({}), connect({enableAutoPipelining: true})];
// They wait for as long as it takes.
const [alone, together] = [single, crowd].map((clients) => {
    return new Redlock(clients, {retryCount: -1});
});
const version = (name) => require(`${name}/package.json`).version;

// Takes the lock and gives it back for as long as that.
const turn = async (redlock, name, milliseconds) => {
    const had = [];
    const end = process.hrtime.bigint() + BigInt(milliseconds) * 1000000n;
    for (let asked = process.hrtime.bigint(); asked < end; asked = process.hrtime.bigint()) {
        const lock = await redlock.lock(name, TTL_MS);
        const granted = process.hrtime.bigint();
        await lock.unlock();
        had.push([granted - asked, process.hrtime.bigint() - asked]);
    }
    return had;
};

const main = async () => {
    await Promise.all([...single, ...crowd].map((client) => client.ping()));
    const settings = `ioredis ${version('ioredis')}, enableAutoPipelining for many callers, ` +
        `ttl ${TTL_MS / 1000} s, retryCount -1; else its defaults (asks again after 100 to 300 ms)`;
    console.log(`ready\t${version('redlock')}\t${settings}`);
    for await (const line of readline.createInterface({input: process.stdin})) {
        const [, milliseconds, ...names] = line.split('\t');
        try {
            const redlock = names.length === 1 ? alone : together;
            const had = await Promise.all(names.map((name) => turn(redlock, name, milliseconds)));
            console.log(had.flat().map((times) => times.join('/')).join(' '));
        } catch (error) {
            console.log(`error ${String(error).replace(/\s+/g, ' ')}`);
        }
    }
    [...single, ...crowd].forEach((client) => client.disconnect());
};

main();
