import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams' word count, exactly once: WordCount SERVERS APPLICATION FROM INTO DIRECTORY.
 *
 * Every word of the lines in FROM gives a record in INTO: the word, and how often it came so far. The state is in
 * DIRECTORY and in a changelog of the broker's. Says each state that it comes to as a line of JSON. Ends with 1 when
 * Kafka Streams gives up.
 */
public class WordCount {
    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(given[4]).toString());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        // Long enough that who reads uncommitted records sees a transaction before its end.
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 500);
        // Without it a word that comes twice between two commits is told once.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(given[2], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(given[3], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch gaveUp = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            System.out.println("\"" + now + "\"");
            if (now == KafkaStreams.State.ERROR) {
                gaveUp.countDown();
            }
        });
        streams.start();
        gaveUp.await();
        System.exit(1);
    }
}
