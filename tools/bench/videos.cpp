#include "bench/videos.h"

#include "base/clock.h"
#include "base/error.h"
#include "bench/training.h"
#include "infer/generator.h"

#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace fvlm::bench {
namespace {

void check(const VideosRequest& request) {
  for (const auto& [what, number] : {std::pair("videos", request.videos),
                                     {"frames of a video", request.frames},
                                     {"tokens of a prompt", request.prompt},
                                     {"tokens of an answer", request.answer},
                                     {"measured runs", request.repeat}})
    if (number < 1) throw Error(ErrorKind::usage, "{} {}: expected at least 1", number, what);
}

// All frames differ, and all prompts, so that nothing computed for one serves another.
std::vector<model::Sample> samples_of(const VideosRequest& request, const Shape& shape) {
  const at::Tensor frames = at::randn({request.frames, 3, shape.frame, shape.frame}, at::kFloat);
  const int64_t vocabulary = shape.vocabulary();
  std::vector<model::Sample> samples;
  for (int64_t video = 0; video < request.videos; ++video) {
    model::Text text;
    for (int64_t i = 0; i < request.prompt; ++i)
      text.tokens.push_back((video * 7919 + i * i * 31 + i * 17) % vocabulary);
    samples.push_back({frames.add(0.01 * static_cast<double>(video)), {std::move(text)}});
  }
  return samples;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = steady_seconds();
  work();
  return steady_seconds() - begin;
}

double fastest(int64_t repeat, const std::function<void()>& work) {
  double least = seconds_of(work);
  for (int64_t run = 1; run < repeat; ++run) least = std::min(least, seconds_of(work));
  return least;
}

} // namespace

nlohmann::ordered_json VideosReport::json() const {
  nlohmann::ordered_json document{{"videos", videos}, {"frames", frames}, {"prompt", prompt}, {"answer", answer}};
  auto& all = document["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows)
    all.push_back({{"shape", row.shape},
                   {"together_seconds", row.together},
                   {"one_by_one_seconds", row.one_by_one},
                   {"ratio", row.ratio()}});
  return document;
}

VideosReport measure_videos(const VideosRequest& request, Registry& registry, const Progress& progress) {
  check(request);
  const c10::InferenceMode without_autograd;
  VideosReport report{request.videos, request.frames, request.prompt, request.answer, {}};
  SyntheticModels models(DType::bf16);
  infer::GenerateOptions options;
  options.limit = request.answer;
  options.ignore_eos = true;
  const infer::Generator::TakeAnswer take = [&](const infer::Answer& answer) {
    if (std::ssize(answer.ids) != request.answer)
      throw Error(ErrorKind::internal, "an answer of {} tokens", answer.ids.size());
  };
  for (const std::string& name : request.shapes) {
    const Shape& shape = shape_named(name);
    shape.require_whole_frames();
    infer::Generator generator(models.of(shape), request.execution, registry);
    const std::vector<model::Sample> samples = samples_of(request, shape);
    const auto together = [&] { generator.answers(samples, options, take); };
    const auto one_by_one = [&](size_t count) {
      for (size_t i = 0; i < count; ++i) generator.answers({samples[i]}, options, take);
    };
    auto& row = report.rows.emplace_back(VideosReport::Row{name});
    // Plugins are selected in the first run of each.
    progress(name + ", together", 0, 2);
    together();
    row.together = fastest(request.repeat, together);
    progress(name + ", one after another", 1, 2);
    one_by_one(std::min<size_t>(2, samples.size()));
    row.one_by_one = fastest(request.repeat, [&] { one_by_one(samples.size()); });
  }
  return report;
}

} // namespace fvlm::bench
