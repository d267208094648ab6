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

// Refused before any work is done.
void check(const Generator& generator, const std::vector<Sample>& samples, const std::filesystem::path& file) {
  for (size_t i = 0; i < samples.size(); ++i) try {
      (void)generator.require_room(samples[i].frames, samples[i].texts[0].tokens);
    } catch (const Error& error) {
      throw Error(ErrorKind::data, fmt::format("sample {}: {}", i, error.what()))
          .at(file.string())
          .advise(error.advice());
    }
}

} // namespace

std::vector<int64_t> end_tokens(const ModelDescription& model) {
  const HuggingFaceFolder& folder = model.sole_part(Role::decoder).folder;
  for (const auto& file : folder.carried) {
    if (file.name != "generation_config.json") continue;
    const std::string where = (folder.path / file.name).string();
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
  return model.decoder().eos_token_id;
}

Generator::Generator(const std::filesystem::path& model, const Execution& execution, Registry& registry)
    : ops_(registry, execution.operations()) {
  const ModelDirectory directory = ModelDirectory::open(model);
  ends_ = end_tokens(directory.description());
  model_ = load_model(directory, execution.arena(false));
}

int64_t Generator::require_room(const at::Tensor& frames, const std::vector<int64_t>& prompt) const {
  if (frames_of(frames) > 0) require_readable(frames, model_->frame_reader(frames));
  const int64_t rows = model_->prompt_rows(frames, prompt), tokens = std::ssize(prompt) - placeholders_of(prompt),
                positions = config().decoder.max_position_embeddings;
  if (tokens == 0) throw Error(ErrorKind::data, "its prompt is empty").advise("a prompt of one token is enough");
  if (rows >= positions)
    throw Error(ErrorKind::data,
                fmt::format("{} frames{} and {} tokens leave nothing of the decoder's {} positions", frames_of(frames),
                            rows - tokens == frames_of(frames) ? "" : fmt::format(" of {} rows in all", rows - tokens),
                            tokens, positions));
  return rows;
}

Answer Generator::answer(const at::Tensor& frames, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                         const Model::TokenCallback& take) {
  if (options.limit < 1)
    throw Error(ErrorKind::usage, fmt::format("an answer has 1 token or more, not {}", options.limit));
  Answer answer{frames_of(frames), std::ssize(prompt) - placeholders_of(prompt), {}, false, 0};
  const int64_t room = config().decoder.max_position_embeddings - require_room(frames, prompt);
  const auto begin = std::chrono::steady_clock::now();
  auto ends = options.ignore_eos ? std::vector<int64_t>() : ends_;
  if (!options.ignore_eos) ends.insert(ends.end(), options.end_tokens.begin(), options.end_tokens.end());
  const at::Tensor shown = encoder_input(frames, ops_.tensor_options());
  answer.ids = model_->generate(ops_, shown, prompt, {std::min(options.limit, room), ends}, options.sampling, take);
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  answer.ended = std::find(ends.begin(), ends.end(), answer.ids.back()) != ends.end();
  return answer;
}

void answer_batch(Generator& answerer, const std::filesystem::path& file, const GenerateOptions& options,
                  const std::function<void(const Answer&)>& take) {
  const DecoderConfig& decoder = answerer.config().decoder;
  const BatchFile batch(file, answerer.config().connector->reads_bytes());
  const auto samples = batch.samples(BatchFile::Texts::prompts, decoder.vocab_size);
  check(answerer, samples, file);
  GenerateOptions of_sample = options;
  for (const Sample& sample : samples) {
    take(answerer.answer(sample.frames, sample.texts[0].tokens, of_sample));
    ++of_sample.sampling.answer;
  }
}

} // namespace fvlm::model
