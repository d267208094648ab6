#include "evaluation/scored_part.h"

#include "recipe/placeholders.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace fvlm::evaluation {

using Json = nlohmann::json;

void SampleSizes::add(const HostPack& pack) {
  for (const PackedSample& packed : pack.samples) {
    const Sample& sample = *packed.sample;
    ++samples;
    const auto prompt = PromptAndAnswer(sample.texts.front()).prompt;
    tokens += static_cast<double>(
        std::count_if(prompt.begin(), prompt.end(), [](TokenId id) { return !is_placeholder(id); }));
    rows += static_cast<double>(sample.visual_rows());
    bytes += static_cast<double>(sample.bytes.size());
  }
}

std::vector<std::pair<std::string, double>> SampleSizes::means(const model::Model& model,
                                                               const std::string& mode) const {
  const model::ModelConfig& config = model.config();
  if (!config.connector->reads_bytes() || samples == 0) return {};
  std::vector<std::pair<std::string, double>> all{{"prompt_tokens", tokens / samples}, {"latents", rows / samples}};
  if (bytes == 0) return all; // the decoder reads the source
  all.emplace_back("source_bytes", bytes / samples);
  if (const auto sent =
          config.connector->wire_bytes({mode, config.vision.hidden_size, static_cast<int64_t>(model.decoders())}))
    all.emplace_back("wire_bytes", static_cast<double>(*sent));
  return all;
}

// In CBOR, which keeps the bits of numbers and takes texts that are no UTF-8.
std::string ScoredPart::text() const {
  Json all = {{"entropy", entropy},
              {"frames", frames},
              {"sizes", {sizes.samples, sizes.tokens, sizes.rows, sizes.bytes}},
              {"failed_decodes", loader->failed_decodes()},
              {"samples", Json::array()}};
  for (const SampleScore& sample : samples) {
    Json texts = Json::array();
    for (const TextScore& text : sample.texts) texts.push_back({text.loss, text.labels, text.bytes, text.first_rank});
    Json one = {sample.position, sample.key, sample.source, sample.correct, std::move(texts)};
    if (!sample.inputs.empty()) {
      Json inputs = Json::array();
      for (const EmbeddedInput& input : sample.inputs) {
        const auto bytes = std::as_bytes(std::span(input.vector));
        std::vector<uint8_t> vector(bytes.size());
        std::memcpy(vector.data(), bytes.data(), bytes.size());
        inputs.push_back({input.content, Json::binary(std::move(vector))});
      }
      one.push_back(std::move(inputs));
    }
    if (sample.generated) one.insert(one.end(), {sample.generated->answer, sample.generated->expected});
    all["samples"].push_back(std::move(one));
  }
  std::string bytes;
  Json::to_cbor(all, bytes);
  return bytes;
}

int64_t ScoredPart::add(const std::string& text) {
  const Json all = Json::from_cbor(text);
  entropy += all["entropy"].get<double>();
  frames += all["frames"].get<int64_t>();
  const Json& of = all["sizes"];
  sizes.samples += of[0].get<double>(), sizes.tokens += of[1].get<double>();
  sizes.rows += of[2].get<double>(), sizes.bytes += of[3].get<double>();
  for (const Json& one : all["samples"]) {
    SampleScore& sample = samples.emplace_back();
    sample.position = one[0], sample.key = one[1], sample.source = one[2], sample.correct = one[3];
    for (const Json& text : one[4]) sample.texts.push_back({text[0], text[1], text[2], text[3]});
    if (one.size() == 6)
      for (const Json& input : one[5]) {
        const auto& bytes = input[1].get_binary();
        EmbeddedInput& read = sample.inputs.emplace_back(EmbeddedInput{input[0].get<uint64_t>(), {}});
        read.vector.resize(bytes.size() / sizeof(float));
        std::memcpy(read.vector.data(), bytes.data(), bytes.size());
      }
    if (one.size() > 6) sample.generated = {one[5].get<std::string>(), one[6].get<Answers>()};
  }
  return all["failed_decodes"];
}

void ScoredPart::merge(const dist::Ranks& ranks) {
  const std::vector<std::string> texts = ranks.gather(text());
  ScoredPart all; // in the order of ranks, so that sums are the same on each
  int64_t failed = 0;
  for (const std::string& text : texts) failed += all.add(text);
  Cursor end = loader->cursor();
  end.broken += failed - loader->failed_decodes();
  loader->check(end);
  all.loader = std::move(loader);
  *this = std::move(all);
}

} // namespace fvlm::evaluation
