import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/**
 * ShedLock's JdbcTemplateLockProvider, which does what it is told, a line at a time: VERB NAME …;
 * answers each line with the time in ms. The arguments are the URL of the database, the clock (db,
 * utc, or jvm for the zone of this JVM), and what it writes into locked_by.
 */
public class Peer {
    private static final Map<String, SimpleLock> HELD = new HashMap<>();
    private static JdbcTemplateLockProvider provider;

    public static void main(String[] args) throws Exception {
        JdbcTemplate jdbc = new JdbcTemplate(new SingleConnectionDataSource(args[0], true));
        Configuration.Builder builder =
                Configuration.builder().withJdbcTemplate(jdbc).withLockedByValue(args[2]);
        switch (args[1]) {
            case "db": builder = builder.usingDbTime(); break;
            case "utc": builder = builder.forceUtcTimeZone(); break;
            default: break;
        }
        provider = new JdbcTemplateLockProvider(builder.build());
        // Its classes are loaded before its time counts.
        take("warm-up " + args[2], 1000, 0);
        release("warm-up " + args[2]);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            String answer;
            try {
                answer = act(words);
            } catch (Exception e) {
                answer = "error " + e.toString().replaceAll("\\s+", " ");
            }
            out.println(answer + "\t" + System.currentTimeMillis());
        }
        System.exit(0);
    }

    private static boolean take(String name, long mostMs, long leastMs) {
        Optional<SimpleLock> lock = provider.lock(new LockConfiguration(Instant.now(), name,
                Duration.ofMillis(mostMs), Duration.ofMillis(leastMs)));
        lock.ifPresent(held -> HELD.put(name, held));
        return lock.isPresent();
    }

    /** ShedLock does not wait by itself: it is asked again and again. */
    private static boolean waitFor(String name, long mostMs, long waitMs) throws Exception {
        long until = System.currentTimeMillis() + waitMs;
        while (!take(name, mostMs, 0)) {
            if (System.currentTimeMillis() > until) {
                return false;
            }
            Thread.sleep(20);
        }
        return true;
    }

    /** Its unlock never says whether it was the holder's. */
    private static String release(String name) {
        HELD.remove(name).unlock();
        return "done";
    }

    private static boolean extend(String name, long mostMs) {
        Optional<SimpleLock> lock =
                HELD.remove(name).extend(Duration.ofMillis(mostMs), Duration.ZERO);
        lock.ifPresent(held -> HELD.put(name, held));
        return lock.isPresent();
    }

    private static String act(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "try":
                return String.valueOf(
                        take(name, Long.parseLong(words[2]), Long.parseLong(words[3])));
            case "lock": return String.valueOf(waitFor(name, Long.parseLong(words[2]), 15_000));
            case "extend": return String.valueOf(extend(name, Long.parseLong(words[2])));
            case "unlock": return release(name);
            case "sell": return String.valueOf(sell(name, Path.of(words[2]), words[3]));
            default: return "error what?";
        }
    }

    /**
     * Takes one from the stock in the file as often as there are orders and the stock lasts: a
     * read, a pause, and a write, which only the lock keeps together.
     */
    private static int sell(String name, Path file, String orders) throws Exception {
        int sold = 0;
        for (int left = Integer.parseInt(orders); left > 0; left--) {
            if (!waitFor(name, 20_000, 60_000)) {
                throw new IOException("not obtained in a minute");
            }
            int stock = Integer.parseInt(Files.readString(file));
            Thread.sleep(2);
            if (stock > 0) {
                Files.writeString(file, String.valueOf(stock - 1));
                sold++;
            }
            release(name);
            // Whoever asks at once would never let anybody pass.
            Thread.sleep(20);
        }
        return sold;
    }
}
