// connector_probe CONFIG WEIGHTS IN OUT: one connector by itself. CONFIG is its JSON, as in fvlm.json; IN holds
// `hidden` [frames, tokens, width], what an encoder would return, and `d_rows`, what flows back into the connector's
// rows. For a connector of bytes, `hidden` is [rows, width], and `lengths` says how many rows each text has;
// `embedding` is the decoder's. With a `mode` in CONFIG it is that one, and OUT has the rows alone. Else OUT gets
// `rows`, the gradient of `hidden`, and that of every weight.
#include "../ops/tools.h"
#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/loading.h"
#include "model/weights/blocks.h"

#include <ATen/ops/unbind.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

// Returns hidden states that were given to it.
class GivenEncoder : public Encoder {
 public:
  GivenEncoder(Value hidden, bool reads_bytes) : hidden_(std::move(hidden)), reads_bytes_(reads_bytes) {}
  int64_t width() const override { return hidden_.data.size(1); }
  int64_t tokens_per_frame(int64_t, int64_t) const override { return 0; }
  Value forward(Tape&, Operations&, const Tensor&, const Segments&, const PackMaps&) const override { return hidden_; }
  double flops(int64_t, bool) const override { return 0; }
  bool trains() const override { return true; }
  bool reads_bytes() const override { return reads_bytes_; }

 private:
  Value hidden_;
  bool reads_bytes_;
};

class DecoderOfWidth : public Decoder {
 public:
  explicit DecoderOfWidth(int64_t width, const Tensor& embedding)
      : width_(width), parameter_{.name = "embedding", .value = embedding, .gradient = {}} {}
  int64_t width() const override { return width_; }
  ops::Weight embedding() const override { return ops::Weight(parameter_); }
  ops::Weight head() const override { return {}; }
  Value forward(Tape&, Operations&, const Value& x, const Segments&, const ops::SharedGradientPass&, bool,
                const AddedRows&) const override {
    return x;
  }
  KvPages make_kv_pages(Operations&, int64_t, int64_t, int64_t) const override { return {}; }
  Tensor forward(Operations&, const Tensor& x, KvPages&, const StagedRows&) const override { return x; }
  bool can_defer_gradients(int64_t, int64_t) const override { return false; }
  double flops(double, double, bool, bool) const override { return 0; }
  double head_flops(double, bool, bool) const override { return 0; }

 private:
  int64_t width_;
  mutable ops::Parameter parameter_;
};

plan::Connector connector_of(const nlohmann::json& config) {
  for (const connector::Settings& each : connector::all_settings()) {
    plan::Connector made(each.make());
    if (made->kind() != config["kind"]) continue;
    ConfigReader reader(config, "the connector");
    made->read_config(reader);
    reader.finish("");
    return made;
  }
  throw Error(ErrorKind::data, fmt::format("no connector {}", config["kind"].dump()));
}

void probe(const nlohmann::json& config, const Safetensors& weights, const Safetensors& in, const std::string& out) {
  const plan::Connector settings = connector_of(config["connector"]);
  const int64_t decoder_width = config["decoder_width"];
  const Tensor given = tensor_over(in.at("hidden"));
  const bool bytes = settings->reads_bytes();
  std::vector<int64_t> lengths(static_cast<size_t>(bytes ? 0 : given.size(0)), given.size(1));
  if (bytes)
    for (const Tensor& length : tensor_over(in.at("lengths")).unbind()) lengths.push_back(length.item<int64_t>());
  const int64_t frames = std::ssize(lengths), width = given.size(-1), rows = given.numel() / width;
  const WeightLayout layout = settings->layout(width, decoder_width);
  Parameters parameters(blocks_of(layout, "", {}), {});
  const auto views = bind(weights, layout);
  for (size_t i = 0; i < views.size(); ++i)
    if (layout.tensors[i].parameter) parameters.at(layout.tensors[i].name).value.copy_(tensor_over(*views[i]));

  Registry registry{RegistryOptions{}};
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
  Operations operations(registry, ops::OperationsOptions{});
  Tape tape;
  const Value hidden(given.reshape({rows, width}).clone(), true);
  const GivenEncoder encoder(hidden, bytes);
  const DecoderOfWidth decoder(decoder_width, bytes ? tensor_over(in.at("embedding")) : at::zeros({1, 1}));
  const plan::Speed speed;
  const auto connector = make_connector(*settings, {encoder, decoder, speed}, parameters);
  Pack pack;
  pack.frames = at::zeros({frames, 3, 1, 1});
  pack.frame_slots = pack.encoder_slots = frames;
  pack.patches = segments_of(lengths, frames, rows, *std::max_element(lengths.begin(), lengths.end()), at::kCPU);
  const bool attention = connector->has_attention();
  const std::string mode = config.value("mode", settings->modes().front().name);
  const VisualTokens seen = connector->encode(
      tape, operations, pack, {mode, attention ? EncodeOutputs::tokens_and_attention : EncodeOutputs::tokens, nullptr});
  std::map<std::string, Tensor> all{{"rows", seen.tokens.data}};
  if (attention) all["attention"] = seen.attention;
  if (seen.query_attention.defined()) all["query_attention"] = seen.query_attention;
  if (config.contains("mode")) return write_tensors(out, all);
  seen.tokens.gradient->add(tensor_over(in.at("d_rows")).clone());
  tape.backward();
  parameters.zero_missing_gradients();
  for (const auto& parameter : parameters.all())
    if (parameter.gradient.defined()) all[parameter.name] = parameter.gradient;
  all["d_hidden"] = hidden.gradient->take().view(given.sizes());
  write_tensors(out, all);
}

} // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  try {
    probe(nlohmann::json::parse(words[1]), Safetensors::open(words[2]), Safetensors::open(words[3]), words[4]);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.text());
    return error.exit_code();
  }
}
