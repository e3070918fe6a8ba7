import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactional producers by Java's own client, as many as are asked for.
 *
 * Asked by lines of JSON on standard input, each answered by {} or {"failure": "a class"} on standard output:
 * {"open": "name", "settings": {"transactional.id": …}}
 * {"begin": "name"}, {"commit": "name"}, {"abort": "name"}, {"close": "name"}
 * {"send": "name", "topic": "t", "partition": 0, "value": "v"}, answered when it is in the log
 * {"offset": "name", "group": "g", "topic": "t", "partition": 0, "at": 5}
 */
public class Transactions {
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    private static void open(JsonNode asked) {
        Properties settings = new Properties();
        asked.get("settings").fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        PRODUCERS.put(asked.get("open").asText(), producer);
        producer.initTransactions();
    }

    private static void answer(JsonNode asked) throws Exception {
        String what = asked.fieldNames().next();
        if (what.equals("open")) {
            open(asked);
            return;
        }
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(asked.get(what).asText());
        switch (what) {
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(Duration.ofSeconds(5));
            case "send" -> producer.send(new ProducerRecord<>(
                asked.get("topic").asText(), asked.get("partition").asInt(), null,
                asked.get("value").asText().getBytes(StandardCharsets.UTF_8))).get();
            case "offset" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(asked.get("topic").asText(), asked.get("partition").asInt()),
                       new OffsetAndMetadata(asked.get("at").asLong())),
                new ConsumerGroupMetadata(asked.get("group").asText()));
            default -> throw new IllegalArgumentException(what);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = json.createObjectNode();
            try {
                answer(json.readTree(line));
            } catch (Exception failed) {
                Throwable cause = failed.getCause() == null ? failed : failed.getCause();
                answer.put("failure", cause.getClass().getSimpleName());
            }
            out.println(answer);
        }
    }
}
