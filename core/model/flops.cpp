#include "model/flops.h"

namespace fvlm::model {
namespace {

// Operations of a forward pass: matrix products with weights, and attention, which has no weights.
struct Forward {
  double products = 0, attention = 0;

  Forward operator*(double times) const { return {products * times, attention * times}; }
  Forward& operator+=(const Forward& more) {
    products += more.products;
    attention += more.attention;
    return *this;
  }
};

double product(int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(in) * static_cast<double>(out);
}

// One query and one key: query times key, weight times value.
double attention_pair(int64_t width) {
  return 4.0 * static_cast<double>(width);
}

// `weights`, `inputs`: whether those have gradients. Attention's gradient goes to queries, keys and values, or to the
// queries alone.
double with_backward(const Forward& forward, bool weights, bool inputs, bool keys = true) {
  return forward.products * (1 + (weights ? 1 : 0) + (inputs ? 1 : 0)) +
         forward.attention * (1 + (inputs ? (keys ? 2 : 1) : 0));
}

Forward layer_of(const VisionConfig& vision) {
  const int64_t width = vision.hidden_size;
  return {2 * product(width, width) + 2 * product(width, vision.intermediate_size),
          0}; // query, output, both of the MLP
}

// A frame's patches as tokens. Pixels have no gradient.
Forward embed(const VisionConfig& vision, int64_t tokens) {
  return {product(vision.num_channels * vision.patch_size * vision.patch_size, vision.hidden_size) *
              static_cast<double>(tokens - 1),
          0};
}

// A frame through the tower, whose last layer gives keys and values alone.
Forward encode(const VisionConfig& vision, int64_t tokens) {
  const int64_t width = vision.hidden_size;
  const auto rows = static_cast<double>(tokens), layers = static_cast<double>(vision.num_hidden_layers);
  Forward all;
  all += layer_of(vision) * (rows * (layers - 1));
  all += Forward{2 * product(width, width), 0} * (rows * layers); // keys and values
  all += Forward{0, attention_pair(width)} * (rows * rows * (layers - 1));
  return all;
}

// A frame's query through the tower's layers.
Forward attend(const VlmConfig& config, int64_t tokens) {
  const auto layers = static_cast<double>(config.connector.shallow ? 1 : config.vision.num_hidden_layers);
  Forward all = layer_of(config.vision) * layers;
  all += Forward{0, attention_pair(config.vision.hidden_size)} * (layers * static_cast<double>(tokens));
  return all;
}

// The connector's projections before and after attending to a frame.
Forward connect(const VlmConfig& config) {
  const int64_t query = config.connector.query_dim, width = config.vision.hidden_size;
  return {product(query, width) + product(width, width) + product(width, config.decoder.hidden_size), 0};
}

// The query that the decoder makes.
Forward query_from_hidden(const VlmConfig& config) {
  return {product(config.decoder.hidden_size, config.connector.query_dim), 0};
}

Forward decode(const DecoderConfig& decoder, double rows, double pairs) {
  const int64_t width = decoder.hidden_size, heads = decoder.num_attention_heads * decoder.head_dim,
                kv = decoder.num_key_value_heads * decoder.head_dim;
  const auto layers = static_cast<double>(decoder.num_hidden_layers);
  const double row =
      product(width, heads + 2 * kv) + product(heads, width) + 3 * product(width, decoder.intermediate_size);
  return {rows * layers * row, pairs * layers * attention_pair(heads)};
}

double causal_pairs(int64_t length) {
  return 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
}

} // namespace

void Work::add(int64_t own_frames, std::span<const int64_t> texts, int64_t own_labels) {
  frames += static_cast<double>(own_frames);
  labels += static_cast<double>(own_labels);
  coarse_pairs += causal_pairs(own_frames);
  for (const int64_t text : texts) {
    rows += static_cast<double>(own_frames + text);
    pairs += causal_pairs(own_frames + text);
  }
}

double flops(const VlmConfig& config, int64_t tokens, const Work& work, const TrainedParts& trained, Mode mode) {
  const bool any = trained.any(); // a gradient goes all the way back to the queries
  const Forward head{product(config.decoder.hidden_size, config.decoder.vocab_size), 0};
  const auto attend_all = [&](const TrainedParts& of, bool inputs) {
    return with_backward(attend(config, tokens) * work.frames, of.vision, inputs, of.vision) +
           with_backward(connect(config) * work.frames, of.connector, inputs);
  };
  const auto query = [&](const TrainedParts& of, bool inputs) {
    return with_backward(decode(config.decoder, work.frames, work.coarse_pairs), of.decoder, inputs) +
           with_backward(query_from_hidden(config) * work.frames, of.connector, inputs);
  };
  double all = with_backward(embed(config.vision, tokens) * work.frames, trained.vision, false) +
               with_backward(encode(config.vision, tokens) * work.frames, trained.vision, trained.vision) +
               query(trained, any) + attend_all(trained, any) +
               with_backward(decode(config.decoder, work.rows, work.pairs), trained.decoder, any) +
               with_backward(head * work.labels, trained.decoder, any);
  if (mode == Mode::refined) // the static query's tokens, the first queries and what they read: without a gradient
    all += 2 * attend_all({}, false) + query({}, false);
  else
    all += attend_all(trained, any);
  return all;
}

} // namespace fvlm::model
