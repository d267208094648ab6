#include "budget/shadow/model.h"

#include "budget/parameter_groups.h"
#include "model/shared_weight_gradients.h"

#include <fmt/format.h>

namespace fvlm::budget::shadow {

Model::Model(Operations& ops, const ModelShape& shape, const Trains& trains,
             const plan::ActivationCheckpointing& recompute)
    : ops_(ops), shape_(shape), recompute_(recompute) {
  for (const ParameterBlock& block : blocks_of(shape.vision, shape.connector, shape.decoder)) {
    bool any = false;
    for (const ParameterSpec& spec : block) any = any || trains(directory_name(spec.name));
    for (const ParameterSpec& spec : block) trains_[directory_name(spec.name)] = any;
    (any ? trained_ : fixed_) += padded_elements(block);
  }
}

std::string Model::vision_layer(int64_t layer, const char* rest) const {
  return fmt::format("vision.encoder.layer.{}.{}", layer, rest);
}

std::string Model::decoder_layer(int64_t layer, const char* rest) const {
  return fmt::format("decoder.model.layers.{}.{}", layer, rest);
}

Value Model::layer_norm(Tape& tape, const Value& x, const std::string& name) const {
  return ops_.layernorm(tape, x, trains(name + ".weight") || trains(name + ".bias"));
}

Value Model::vision_linear(Tape& tape, const Value& x, const std::string& name, int64_t rows, int64_t columns) const {
  return ops_.linear(tape, x, weight(name + ".weight", rows, columns), trains(name + ".bias"));
}

// [frames * (1 + patches), width], and a row more a frame for one that rides
Value Model::embed(Tape& tape, int64_t frames, const Value& riders) const {
  const int64_t width = shape_.vision.hidden_size, patch = shape_.vision.patch_size, channels = 3,
                columns = ops_.padded(channels * patch * patch);
  const std::string embeddings = "vision.embeddings.";
  const Value pixels(ops_.tensor(frames * patches(), columns));
  const Value patch_values =
      ops_.linear(tape, pixels, weight(embeddings + "patch_embeddings.projection.weight", width, columns),
                  trains(embeddings + "patch_embeddings.projection.bias"));
  const bool position_trains = trains(embeddings + "position_embeddings"),
             token_trains = trains(embeddings + "cls_token");
  Tensor resampled;
  if (image_grid() != shape_.vision.grid()) resampled = ops_.tensor(1 + patches(), width);

  Value y(ops_.tensor(frames * (1 + patches() + (riders.defined() ? 1 : 0)), width),
          tape.records(patch_values.requires_grad() || position_trains || token_trains || riders.requires_grad()));
  if (!y.requires_grad()) return y;
  tape.push([this, frames, width, in = patch_values.gradient, riders = riders.gradient, out = y.gradient] {
    const Tensor gradient = out->take();
    if (!gradient.defined()) return;
    if (riders) riders->add(ops_.tensor(frames, width));
    const Tensor over_frames = ops_.wide(1 + patches(), width);
    if (in) in->add(ops_.tensor(frames * patches(), width));
  });
  return y;
}

Value Model::finish_layer(Tape& tape, int64_t layer, const Value& x, const Value& read) const {
  const int64_t width = shape_.vision.hidden_size, mlp = shape_.vision.intermediate_size;
  const auto name = [&](const char* rest) { return vision_layer(layer, rest); };
  const auto joined = [&](const char* stem, int64_t rows, int64_t columns) -> Weight {
    const std::string of = name(stem);
    return {rows, columns, trains(of + ".weight") || trains(of + ".bias")};
  };
  const auto folded = [&](const char* scale, Weight weight) {
    weight.trains = weight.trains || trains(name(scale));
    return weight;
  };
  if (shape_.speed.fold_layer_scale) {
    const Weight out = folded("layer_scale1.lambda1", joined("attention.output.dense", width, width)),
                 down = folded("layer_scale2.lambda1", joined("mlp.fc2", width, mlp));
    const Value attended = ops_.linear(tape, read, out, out.trains, {}, x);
    return ops_.gelu_mlp(tape, layer_norm(tape, attended, name("norm2")), joined("mlp.fc1", mlp, width), down,
                         attended);
  }
  const Value attended = ops_.layerscale(tape, vision_linear(tape, read, name("attention.output.dense"), width, width),
                                         trains(name("layer_scale1.lambda1")), x);
  const Value inner = ops_.gelu_mlp(tape, layer_norm(tape, attended, name("norm2")), joined("mlp.fc1", mlp, width),
                                    joined("mlp.fc2", width, mlp));
  return ops_.layerscale(tape, inner, trains(name("layer_scale2.lambda1")), attended);
}

bool Model::rides(const Tape& tape) const {
  const bool learns = trains("vision.embeddings.patch_embeddings.projection.weight");
  return shape_.speed.coarse_in_tower && !shape_.connector.shallow() && (!tape.records() || learns);
}

Model::VisualCache Model::encode(Tape& tape, const PackShape& pack, Value& riders) const {
  const int64_t width = shape_.vision.hidden_size, layers = shape_.vision.num_hidden_layers,
                heads = shape_.vision.num_attention_heads;
  const bool ride = riders.defined();
  const Segments rows{1 + patches() + (ride ? 1 : 0)}, keys{1 + patches()};
  VisualCache cache;
  const Tape::LightCheckpointing lean(tape, recompute_.vision.light);
  if (shape_.speed.fold_layer_scale) {
    const bool train = trains(vision_layer(0, "layer_scale1.lambda1"));
    cache.folded_attention = ops_.fold_scale(tape, layers, {width, width, train});
    cache.folded_mlp = ops_.fold_scale(tape, layers, {width, shape_.vision.intermediate_size, train});
  }
  Value x = embed(tape, pack.frames, riders);
  for (int64_t i = 0; i < layers; ++i) {
    const auto name = [this, i](const char* rest) { return vision_layer(i, rest); };
    const auto joint = [this, name, width](int64_t parts) -> Weight {
      return {parts * width, width, trains(name("attention.attention.key.weight"))};
    };
    const bool bias_trains = trains(name("attention.attention.key.bias"));
    if (i + 1 == layers && shape_.speed.skip_last_patches) {
      if (ride) riders = ops_.strided_rows(tape, x, rows.longest);
      cache.layers.push_back(ops_.linear(tape, layer_norm(tape, x, name("norm1")), joint(2), bias_trains));
      if (ride) riders = read(tape, i, riders, cache);
      break;
    }
    const auto block = [this, i, name, joint, bias_trains, width, heads, rows, keys](Tape& inner,
                                                                                     const std::vector<Value>& in) {
      const Value qkv = ops_.linear(inner, layer_norm(inner, in[0], name("norm1")), joint(3), bias_trains);
      const Value kv = ops_.slice_columns(inner, qkv, 2 * width);
      const Value read = ops_.attention(inner, {qkv, 0, heads}, {qkv, width, heads}, {qkv, 2 * width, heads}, rows,
                                        keys, shape_.vision.head_dim(), false, kv);
      return std::vector<Value>{finish_layer(inner, i, in[0], read), kv};
    };
    const auto out = recompute_.vision.covers(i) ? checkpointed(tape, {x}, block) : block(tape, {x});
    x = out[0];
    cache.layers.push_back(out[1]);
    if (ride && i + 1 == layers) riders = ops_.strided_rows(tape, x, rows.longest);
  }
  if (ride) riders = layer_norm(tape, riders, "vision.layernorm");
  return cache;
}

Value Model::read(Tape& tape, int64_t layer, const Value& x, const VisualCache& cache) const {
  const int64_t width = shape_.vision.hidden_size, heads = shape_.vision.num_attention_heads;
  const auto name = [&](const char* rest) { return vision_layer(layer, rest); };
  const Value q =
      vision_linear(tape, layer_norm(tape, x, name("norm1")), name("attention.attention.query"), width, width);
  const Value& kv = cache.layers[static_cast<size_t>(layer)];
  const Value read = ops_.attention(tape, {q, 0, heads}, {kv, 0, heads}, {kv, width, heads}, {1}, {1 + patches()},
                                    shape_.vision.head_dim(), false);
  return finish_layer(tape, layer, x, read);
}

Value Model::attend(Tape& tape, const Value& query, const VisualCache& cache) const {
  const int64_t layers = shape_.vision.num_hidden_layers;
  Value x = query;
  for (int64_t i = shape_.connector.shallow() ? layers - 1 : 0; i < layers; ++i) x = read(tape, i, x, cache);
  return layer_norm(tape, x, "vision.layernorm");
}

Value Model::enter(Tape& tape, const Value& queries) const {
  return ops_.linear(
      tape, queries,
      weight("connector.query_input_proj.weight", shape_.vision.hidden_size, shape_.connector.query_dim));
}

Value Model::shown(Tape& tape, const Value& seen) const {
  const int64_t width = shape_.vision.hidden_size;
  const Value read = vision_linear(tape, seen, "connector.output_proj", width, width);
  return ops_.scale(tape, vision_linear(tape, read, "connector.dino_to_llm", shape_.decoder.hidden_size, width));
}

Value Model::look(Tape& tape, const Value& queries, const VisualCache& cache) const {
  return shown(tape, attend(tape, enter(tape, queries), cache));
}

bool Model::shares_products(const Tape& tape, const PackShape& pack) const {
  return shape_.speed.joint_weight_gradients && tape.keeps_steps() && !recompute_.decoder.light &&
         model::can_defer_gradients(shape_.decoder, pack.rows, ops_.machine().element);
}

Model::Seen Model::see(Tape& tape, const PackShape& pack) const {
  if (pack.frames == 0) return {};
  Ledger& ledger = ops_.ledger();
  const int64_t query = shape_.connector.query_dim;
  const bool ride = rides(tape);
  const Ledger::For connector(ledger, Item::connector);
  const Value fixed = ops_.broadcast_row(tape, weight("connector.q_static", 1, query), pack.frames);
  Value riders = ride ? enter(tape, fixed) : Value();
  const VisualCache cache = [&] {
    const Ledger::For vision(ledger, Item::vision);
    return encode(tape, pack, riders);
  }();
  const Value coarse = ride ? shown(tape, riders) : look(tape, fixed, cache);
  SharedGradientPass earlier, later;
  if (shares_products(tape, pack)) earlier.waiting = later.waiting = std::make_shared<SharedGradientPass::Waiting>();
  later.later = true;
  Value read_before = coarse;
  if (pack.mode == "refined") {
    Tape none(Tape::Mode::forward_only);
    read_before = Value(look(none, queries_from(none, Value(coarse.data), pack, {}), cache).data);
  }
  const Value queries = queries_from(tape, read_before, pack, earlier);
  return {look(tape, queries, cache), coarse, queries, later};
}

Value Model::queries_from(Tape& tape, const Value& tokens, const PackShape& pack,
                          const SharedGradientPass& pass) const {
  const int64_t query = shape_.connector.query_dim;
  const Value hidden = decode(tape, tokens, pack.longest_video, pass);
  const Value asked = vision_linear(tape, hidden, "connector.llm_to_query", query, shape_.decoder.hidden_size);
  // Each frame gets the query of the one before it.
  Value shifted;
  {
    const Tensor joined = ops_.tensor(pack.frames + 1, query);
    const bool records = tape.records(asked.requires_grad() || trains("connector.q_init"));
    shifted = Value(ops_.tensor(pack.frames, query), records);
  }
  if (shifted.requires_grad())
    tape.push([this, query, frames = pack.frames, in = asked.gradient, out = shifted.gradient] {
      const Tensor d_y = out->take();
      if (d_y.defined() && in) in->add(ops_.tensor(frames + 1, query));
    });
  return shifted;
}

Weight Model::head() const {
  const DecoderConfig& config = shape_.decoder;
  return weight(config.tie_word_embeddings ? "decoder.model.embed_tokens.weight" : "decoder.lm_head.weight",
                config.vocab_size, config.hidden_size);
}

Value Model::decode(Tape& tape, const Value& input, int64_t longest, const SharedGradientPass& shared) const {
  const Ledger::For decoder(ops_.ledger(), Item::decoder);
  const DecoderConfig& config = shape_.decoder;
  const int64_t width = config.hidden_size, q = config.num_attention_heads, kv = config.num_key_value_heads,
                dim = config.head_dim, mlp = config.intermediate_size;
  struct {
    Value branch, residual;
  } stream{input, {}};
  const Tape::LightCheckpointing lean(tape, recompute_.decoder.light);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const bool again = recompute_.decoder.covers(i);
    const auto block = [this, i, width, q, kv, dim, mlp, longest, pass = again ? SharedGradientPass() : shared](
                           Tape& inner, const std::vector<Value>& in) -> std::vector<Value> {
      const auto name = [&](const char* rest) { return decoder_layer(i, rest); };
      const auto before =
          ops_.rmsnorm(inner, in[0], in.size() > 1 ? in[1] : Value(), trains(name("input_layernorm.weight")));
      const Value qkv =
          ops_.linear(inner, before.y, weight(name("self_attn.q_proj.weight"), (q + 2 * kv) * dim, width), false, pass);
      const Value attended = ops_.attention(inner, {qkv, 0, q}, {qkv, q * dim, kv}, {qkv, (q + kv) * dim, kv},
                                            {longest}, {longest}, dim, true);
      const Value read =
          ops_.linear(inner, attended, weight(name("self_attn.o_proj.weight"), width, q * dim), false, pass);
      const auto between = ops_.rmsnorm(inner, read, before.sum, trains(name("post_attention_layernorm.weight")));
      const Value gated = ops_.swiglu(
          inner, ops_.linear(inner, between.y, weight(name("mlp.gate_proj.weight"), 2 * mlp, width), false, pass));
      return {ops_.linear(inner, gated, weight(name("mlp.down_proj.weight"), width, mlp), false, pass), between.sum};
    };
    std::vector<Value> in{stream.branch};
    if (stream.residual.defined()) in.push_back(stream.residual);
    const auto out = again ? checkpointed(tape, in, block) : block(tape, in);
    stream = {out[0], out[1]};
  }
  return ops_.rmsnorm(tape, stream.branch, stream.residual, trains("decoder.model.norm.weight")).y;
}

Value Model::read(Tape& tape, const Value& visual, const PackShape& pack, const SharedGradientPass& pass) const {
  const Ledger::For decoder(ops_.ledger(), Item::decoder);
  const bool each_once = pack.visual_rows == pack.frames;
  const Value shown = visual.defined() && !each_once ? ops_.gather_rows(tape, visual, pack.visual_rows) : visual;
  const Weight table =
      weight("decoder.model.embed_tokens.weight", shape_.decoder.vocab_size, shape_.decoder.hidden_size);
  const Value x = ops_.embed(tape, table, shown, pack.rows);
  return decode(tape, x, pack.longest_sequence, pass);
}

} // namespace fvlm::budget::shadow
