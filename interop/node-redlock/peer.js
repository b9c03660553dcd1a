'use strict';

// A node-redlock client that does what it is told, a line at a time: VERB NAME …; answers each line
// with the time in ms. Its arguments are the ports of the members.

const fs = require('fs');
const readline = require('readline');
const Redis = require('ioredis');
const Redlock = require('redlock');

// Who asks a member that is away is told so at once, as node-redlock expects of its clients.
const members = process.argv.slice(2).map((port) => {
    const options = {enableOfflineQueue: false, maxRetriesPerRequest: 0, lazyConnect: true};
    const client = new Redis(Number(port), '127.0.0.1', options);
    client.on('error', () => {});
    return client;
});
// How often a lock that somebody has is asked for, and how often at most.
const waits = new Redlock(members, {retryDelay: 20, retryJitter: 10, retryCount: 750});
const tries = new Redlock(members, {retryCount: 0});
const held = new Map();

const yes = async (promise) => {
    try {
        await promise;
        return 'true';
    } catch (error) {
        if (error.name === 'LockError') {
            return 'false';
        }
        throw error;
    }
};

const lock = async (redlock, name, ttl) => held.set(name, await redlock.lock(name, Number(ttl)));

// Takes one from the stock in the file as often as there are orders and the stock lasts: a read, a
// pause, and a write, which only the lock keeps together.
const sell = async (name, file, orders) => {
    let sold = 0;
    for (let left = Number(orders); left > 0; left -= 1) {
        await lock(waits, name, 6000);
        const stock = Number(fs.readFileSync(file, 'utf8'));
        await new Promise((done) => setTimeout(done, 2));
        if (stock > 0) {
            fs.writeFileSync(file, String(stock - 1));
            sold += 1;
        }
        await held.get(name).unlock();
    }
    return String(sold);
};

const act = ([verb, name, ...rest]) => {
    switch (verb) {
        case 'try':
        case 'keep': return yes(lock(tries, name, rest[0]));
        case 'lock': return yes(lock(waits, name, rest[0]));
        case 'unlock': return yes(held.get(name).unlock());
        case 'extend': return yes(held.get(name).extend(Number(rest[0])));
        case 'sell': return sell(name, ...rest);
        default: throw new Error(`what? ${verb}`);
    }
};

const main = async () => {
    await Promise.all(members.map((member) => member.connect()));
    console.log('ready');
    for await (const line of readline.createInterface({input: process.stdin})) {
        let answer;
        try {
            answer = await act(line.split('\t'));
        } catch (error) {
            answer = `error ${String(error).replace(/\s+/g, ' ')}`;
        }
        console.log(`${answer}\t${Date.now()}`);
    }
    members.forEach((member) => member.disconnect());
};

main();
