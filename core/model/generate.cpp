#include "model/generate.h"

#include "base/error.h"
#include "base/json.h"
#include "model/batch_file.h"
#include "model/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace fvlm::model {
namespace {

// "sample 3": refused before any work is done.
void check(const std::vector<Sample>& samples, int64_t positions, const std::filesystem::path& file) {
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t frames = samples[i].frames.defined() ? samples[i].frames.size(0) : 0,
                  prompt = static_cast<int64_t>(samples[i].texts[0].tokens.size());
    if (prompt == 0)
      throw Error(ErrorKind::data, fmt::format("sample {}: its prompt is empty", i))
          .at(file.string())
          .advise("a prompt of one token is enough");
    if (frames + prompt >= positions)
      throw Error(ErrorKind::data, fmt::format("sample {}: {} frames and {} tokens leave nothing of the decoder's {} "
                                               "positions",
                                               i, frames, prompt, positions))
          .at(file.string());
  }
}

} // namespace

std::vector<int64_t> end_tokens(const ModelDescription& model) {
  for (const auto& file : model.decoder_folder.carried) {
    if (file.name != "generation_config.json") continue;
    const std::string where = (model.decoder_folder.path / file.name).string();
    const auto config = parse_json(file.content->text(), where);
    const auto ids = config.is_object() && config.contains("eos_token_id") ? config["eos_token_id"] : nlohmann::json();
    if (ids.is_null()) break;
    std::vector<int64_t> ends;
    for (const auto& id : ids.is_array() ? ids : nlohmann::json::array({ids})) {
      if (!id.is_number_integer())
        throw Error(ErrorKind::data, fmt::format("eos_token_id is {}, not a token id or a list of them", ids.dump()))
            .at(where);
      ends.push_back(id.get<int64_t>());
    }
    return ends;
  }
  return model.decoder.eos_token_id;
}

void generate(const GenerateRequest& request, Registry& registry, const std::function<void(const Answer&)>& take) {
  if (request.limit < 1)
    throw Error(ErrorKind::usage, fmt::format("--limit wants 1 token or more, not {}", request.limit));
  Operations ops(registry, request.execution.operations());
  const ModelDirectory directory = ModelDirectory::open(request.model);
  const DecoderConfig& decoder = directory.description().decoder;
  const BatchFile batch(request.batch);
  const auto samples = batch.samples(BatchFile::Texts::prompts, decoder.vocab_size);
  check(samples, decoder.max_position_embeddings, request.batch);
  const auto ends = request.ignore_ends ? std::vector<int64_t>() : end_tokens(directory.description());
  const auto vlm = load_model(directory, request.execution.arena(false));
  for (const Sample& sample : samples) {
    const auto& prompt = sample.texts[0].tokens;
    Answer answer;
    answer.frames = sample.frames.defined() ? sample.frames.size(0) : 0;
    answer.prompt = static_cast<int64_t>(prompt.size());
    const auto begin = std::chrono::steady_clock::now();
    const at::Tensor frames = sample.frames.defined() ? sample.frames.to(ops.tensor_options()) : at::Tensor();
    const int64_t room = decoder.max_position_embeddings - answer.frames - answer.prompt;
    answer.ids = vlm->generate(ops, frames, prompt, {std::min(request.limit, room), ends});
    answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    answer.ended = std::find(ends.begin(), ends.end(), answer.ids.back()) != ends.end();
    take(answer);
  }
}

} // namespace fvlm::model
