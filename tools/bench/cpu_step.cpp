#include "bench/cpu_step.h"

#include "base/error.h"
#include "base/scratch_folder.h"
#include "bench/peer.h"
#include "bench/synthetic_model.h"
#include "model/batch_file.h"
#include "model/execution.h"
#include "model/loading.h"
#include "model/objectives.h"
#include "ops/host_memory.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

namespace fvlm::bench {
namespace {

namespace fs = std::filesystem;

constexpr double loss_tolerance = 1e-4; // relative
constexpr int64_t blocks = 10;          // rounds of each side

struct NamedBatch {
  std::string name;
  fs::path file;
};

// The engine's side: a model, and steps that start from samples.
class EngineStep {
 public:
  EngineStep(const CpuStepRequest& request, const fs::path& folder, Registry& registry)
      : operations_(registry, model::Execution{.kernels = request.kernels}.operations()),
        model_(model::load_model_in_mode(folder, {}, request.mode)) {
    const auto& config = model_.model->config();
    const int64_t depth = std::max(config.vision.num_hidden_layers, config.decoder.num_hidden_layers);
    const auto recompute = model::Recompute::parse(request.recompute, depth);
    model_.model->encoder().recompute = recompute;
    model_.model->decoder().recompute = recompute;
  }

  void take(const fs::path& file) {
    batch_.emplace(file, model_.model->encoder().reads_bytes());
    samples_ = batch_->samples(model::BatchFile::Texts::labelled, model_.model->config().decoder.vocab_size);
  }
  const std::vector<model::Sample>& samples() const { return samples_; }
  model::Capacity size() const { return model::Capacity::of(samples_, reader().rows_per_frame); }

  void run(int64_t steps, CpuStepSide& side) {
    for (int64_t i = 0; i < steps; ++i) {
      const Stopwatch watch;
      const at::Tensor loss = step();
      side.times.add(watch.stop());
      side.loss = loss.item<double>();
    }
  }

  std::vector<std::string> choices() const {
    std::vector<std::string> lines;
    for (const auto& report : operations_.choices()) lines.push_back(report.text());
    return lines;
  }

 private:
  model::FrameReader reader() const { return model_.model->frame_reader(batch_->frames()); }

  at::Tensor step() {
    const c10::InferenceMode without_autograd; // the engine has its own tape
    model::Model& model = *model_.model;
    const auto pack = model::make_pack(samples_, size(), reader(), operations_.tensor_options());
    model.parameters().reset_gradients();
    ops::Tape tape;
    const auto visual = model.encode(tape, operations_, pack, model_.mode);
    const auto hidden = model.decode(tape, operations_, visual.tokens, pack, visual.next);
    const at::Tensor losses = model::next_token_loss(tape, operations_, model, hidden, pack, pack.labels.weights);
    tape.backward();
    return losses.mul(pack.labels.weights).sum();
  }

  ops::Operations operations_;
  model::ModelInMode model_;
  std::optional<model::BatchFile> batch_; // the samples' frames lie in its mapping
  std::vector<model::Sample> samples_;
};

void run(Peer& peer, int64_t steps, CpuStepSide& side) {
  const Peer::Answer answer = peer.run(steps);
  for (const StepTime& step : answer.turns) side.times.add(step);
  side.loss = answer.loss;
}

CpuStepReport::Row row_of(const std::string& batch, const EngineStep& engine) {
  const auto size = engine.size();
  const auto count = static_cast<int64_t>(engine.samples().size());
  return {batch, count, size.frames, size.rows, count * size.longest_sequence, {}, {}};
}

void check(const CpuStepRequest& request) {
  if (request.mode == "autoregressive")
    throw Error(ErrorKind::usage, "autoregressive is inference: it has no training step");
  if (request.model.empty() != request.batch.empty()) throw Error(ErrorKind::usage, "--model and --batch go together");
  if (request.repeat < 1 || request.warmup < 0 || request.threads < 0)
    throw Error(ErrorKind::usage, "expected --repeat of 1 or more, --warmup and --threads of 0 or more");
}

} // namespace

CpuStepReport measure_cpu_step(const CpuStepRequest& request, Registry& registry, const Progress& progress) {
  check(request);
  if (request.threads > 0) at::set_num_threads(static_cast<int>(request.threads));
  ops::keep_freed_memory();
  CpuStepReport report;
  report.threads = at::get_num_threads();

  const ScratchFolder scratch;
  fs::path folder = request.model;
  std::vector<NamedBatch> batches;
  if (folder.empty()) {
    const Shape& shape = shape_named(request.shape);
    folder = scratch.path() / "model";
    make_model(shape, folder);
    for (const BatchShape& batch : shape.batches) {
      batches.push_back({batch.name, scratch.path() / (std::string(batch.name) + ".safetensors")});
      make_batch(shape, batch, batches.back().file);
    }
  } else {
    batches.push_back({request.batch.filename().string(), request.batch});
  }

  EngineStep engine(request, folder, registry);
  for (const NamedBatch& batch : batches) {
    engine.take(batch.file);
    CpuStepReport::Row& row = report.rows.emplace_back(row_of(batch.name, engine));
    std::optional<Peer> peer;
    if (!request.peer.empty()) {
      peer.emplace(request.peer,
                   std::vector<std::string>{"--model", folder.string(), "--batch", batch.file.string(), "--mode",
                                            request.mode, "--threads", std::to_string(report.threads), "--warmup",
                                            std::to_string(request.warmup), "--turns"});
      (void)peer->run(0); // it has loaded the model and warmed up
      row.peer.emplace();
    }
    CpuStepSide unmeasured;
    engine.run(request.warmup, unmeasured);
    progress(batch.name, 0, request.repeat);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = request.repeat * block / blocks, end = request.repeat * (block + 1) / blocks;
      if (begin == end) continue;
      engine.run(end - begin, row.engine);
      if (peer) run(*peer, end - begin, *row.peer);
      progress(batch.name, end, request.repeat);
    }
    if (peer) require_same_loss(row.engine.loss, row.peer->loss, loss_tolerance, "batch " + row.batch);
  }
  report.choices = engine.choices();
  return report;
}

nlohmann::ordered_json CpuStepReport::json() const {
  nlohmann::ordered_json document{
      {"threads", threads}, {"kernels", choices}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    const auto side = [&](const CpuStepSide& of) {
      auto json = of.times.json(row.samples);
      json["loss"] = of.loss;
      return json;
    };
    nlohmann::ordered_json one{
        {"batch", row.batch},        {"samples", row.samples},         {"frames", row.frames},
        {"decoder_rows", row.rows},  {"padded_rows", row.padded_rows}, {"repeat", row.engine.times.count()},
        {"engine", side(row.engine)}};
    if (row.peer) {
      one["peer"] = side(*row.peer);
      one["ratio"] = row.ratio();
      one["ratio_of_least"] = row.ratio_of_min();
      one["ratio_of_cpu"] = row.ratio_of_cpu();
    }
    document["rows"].push_back(std::move(one));
  }
  return document;
}

} // namespace fvlm::bench
