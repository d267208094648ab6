// train_probe RECIPE DATA OUT PLUGINS: trains, and writes what the oracle needs to repeat it: OUT/start, the initial
// model, and OUT/batches/STAGE-STEP.safetensors, each step's samples as a batch of `trace`.
#include "base/error.h"
#include "feed/model_samples.h"
#include "model/loading.h"
#include "objective/labels.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "train/initial_model.h"
#include "train/run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <cstdio>

namespace fs = std::filesystem;
using namespace fvlm;

namespace {

struct Texts {
  std::vector<int64_t> ids, lengths, mask;
  void add(const SampleText& text, const plan::Stage& stage) {
    const auto labels = objective::labels(text, stage.objective);
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    mask.insert(mask.end(), labels.begin(), labels.end());
    lengths.push_back(static_cast<int64_t>(text.ids.size()));
  }
  void put(const std::string& prefix, std::map<std::string, at::Tensor>& batch) const {
    batch[prefix + "input_ids"] = at::tensor(ids, at::kLong);
    batch[prefix + "text_lengths"] = at::tensor(lengths, at::kLong);
    batch[prefix + "loss_mask"] = at::tensor(mask, at::kLong);
  }
};

void write_batch(const fs::path& file, const HostPack& pack, const plan::Stage& stage, int64_t size) {
  std::map<std::string, at::Tensor> batch;
  std::vector<int64_t> counts, judgements, roles;
  const bool are_pairs = stage.needs_pairs() && !stage.embeds();
  Texts first, second;
  for (const PackedSample& packed : pack.samples) {
    counts.push_back(packed.sample->frames);
    judgements.push_back(packed.sample->is_desirable.value_or(false));
    roles.push_back(static_cast<int64_t>(packed.sample->role));
    first.add(packed.sample->texts.at(0), stage);
    if (are_pairs) second.add(packed.sample->texts.at(1), stage);
  }
  first.put(are_pairs ? "chosen_" : "", batch);
  if (are_pairs) second.put("rejected_", batch);
  batch["frame_counts"] = at::tensor(counts, at::kLong);
  if (stage.embeds()) batch["roles"] = at::tensor(roles, at::kLong); // 1: query, 2: positive, 3: negative
  if (stage.needs_judgements()) batch["judgements"] = at::tensor(judgements, at::kLong);
  batch["frames"] = at::empty({pack.frame_count, 3, size, size}, at::kFloat);
  feed::frames_of(pack, size).copy_to(batch["frames"]);
  model::write_tensors(file, batch);
}

int run(const fs::path& recipe, const std::string& data, const fs::path& out, const fs::path& plugins) {
  at::set_num_threads(1);
  recipe::Request wanted;
  wanted.file = recipe;
  wanted.args = {{"data", data}};
  const auto resolved = recipe::resolve(wanted);
  RegistryOptions options;
  options.bundled = plugins;
  options.load.bundled = read_bundled_hashes(plugins.parent_path() / "bundled", options.load.trust);
  Registry registry(options);
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });

  const c10::InferenceMode without_autograd;
  const auto description = train::describe(resolved.plan);
  const auto model = train::make_model(description, static_cast<uint64_t>(resolved.plan.seed), {});
  const plan::Stage& begins = resolved.plan.stages[0];
  const train::Optimization optimization(resolved.plan, begins, registry, model->parameters(),
                                         train::groups_of(resolved.plan.model, begins, model->parameters()));
  train::write_checkpoint(out / "start", train::snapshot(description, *model, optimization, {}));

  fs::create_directories(out / "batches");
  train::TrainRequest request;
  request.folder = out / "run";
  request.faults.before_pack = [&](const std::string& name, int64_t step, HostPack& pack) {
    for (const plan::Stage& stage : resolved.plan.stages)
      if (stage.name == name)
        write_batch(out / "batches" / fmt::format("{}-{:03}.safetensors", name, step), pack, stage,
                    resolved.plan.model.image_size);
  };
  train::train(resolved, request, registry);
  return 0;
}

} // namespace

int main(int count, char** words) {
  try {
    return count == 5 ? run(words[1], words[2], words[3], words[4]) : 2;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return 1;
  }
}
