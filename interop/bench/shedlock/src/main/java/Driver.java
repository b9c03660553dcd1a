import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** See peers.py. Its argument is the server. */
public class Driver {
    /** ShedLock does not wait by itself: it is asked again. */
    private static final long PAUSE_MS = 10;

    public static void main(String[] args) throws Exception {
        String url = "jdbc:postgresql://" + args[0] + "/postgres?user=keeper";
        JdbcTemplate jdbc = new JdbcTemplate(new SingleConnectionDataSource(url, true));
        jdbc.execute("CREATE TABLE IF NOT EXISTS shedlock(name VARCHAR(64) NOT NULL, "
                + "lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, "
                + "locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))");
        LockProvider provider = new JdbcTemplateLockProvider(Configuration.builder()
                .withJdbcTemplate(jdbc).usingDbTime().build());
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in,
                StandardCharsets.UTF_8));
        warmUp(provider);
        out.println("ready\t" + version() + "\tusingDbTime, asked again after " + PAUSE_MS + " ms");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            out.println(turn(provider, Long.parseLong(words[1]) * 1_000_000, words[2]));
        }
        System.exit(0);
    }

    /** Of its jar's name: its manifest has none. */
    private static String version() {
        String path = JdbcTemplateLockProvider.class.getProtectionDomain().getCodeSource()
                .getLocation().getPath();
        return path.replaceAll(".*-([0-9.]+)\\.jar", "$1");
    }

    /** In each process, before it is measured: so what is measured is compiled. */
    private static void warmUp(LockProvider provider) throws Exception {
        if (!"release".equals(System.getenv("PROFILE"))) {
            return;
        }
        turn(provider, 3_000_000_000L, "warm-" + ProcessHandle.current().pid());
    }

    private static String turn(LockProvider provider, long time, String name) throws Exception {
        StringBuilder answer = new StringBuilder();
        long end = System.nanoTime() + time;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            Optional<SimpleLock> lock = take(provider, name);
            while (lock.isEmpty() && System.nanoTime() < end) {
                Thread.sleep(PAUSE_MS);
                lock = take(provider, name);
            }
            if (lock.isEmpty()) {
                break;
            }
            long had = System.nanoTime();
            lock.get().unlock();
            answer.append(had - asked).append('/').append(System.nanoTime() - asked).append(' ');
        }
        return answer.toString();
    }

    private static Optional<SimpleLock> take(LockProvider provider, String name) {
        return provider.lock(new LockConfiguration(Instant.now(), name, Duration.ofSeconds(20),
                Duration.ZERO));
    }
}
