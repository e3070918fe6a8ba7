import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/**
 * Java's own default partitioner as an oracle: a case as a line of JSON on standard input, its outcome on standard output.
 *
 * Case: {"keys": [base64, …], "partitions": n}
 * Outcome: [partition, …]
 */
public class Partitions {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode given = json.readTree(line);
            ArrayNode chosen = json.createArrayNode();
            for (JsonNode key : given.get("keys")) {
                byte[] bytes = Base64.getDecoder().decode(key.asText());
                chosen.add(BuiltInPartitioner.partitionForKey(bytes, given.get("partitions").asInt()));
            }
            System.out.println(json.writeValueAsString(chosen));
        }
    }
}
