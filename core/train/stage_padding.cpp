#include "train/stage_padding.h"

#include "base/error.h"
#include "budget/described_model.h"
#include "model/loading.h"
#include "train/pack_classes.h"
#include "train/stage_model.h"
#include "train/thread_replicas.h"

#include <c10/core/InferenceMode.h>

namespace fvlm::train {
namespace {

// The model on tensors without content knows how much its parts compute.
int64_t row_classes_on_gpu(const plan::Plan& plan, const StageData& data, const ModelDescription& description) {
  const c10::InferenceMode without_autograd;
  const model::Model model(model::config_of(description),
                           {.device = at::kMeta, .trains = [](const model::ParameterSpec&) { return false; }});
  const int64_t size = plan.model.image_size;
  const model::Capacity max = max_capacity_of(plan, data.stage(), data.batches().capacity, data.batches().most_samples);
  return PackClasses::row_classes(
      true, PackClasses::decoder_share(model, max, model.frame_reader(size, size).tokens_per_frame));
}

} // namespace

PackPadding padding_of(const plan::Plan& plan, const StageData& data, at::Device device) {
  PackPadding padding{.row_classes = classes_of(!device.is_cpu())};
  try {
    const ModelDescription description = budget::describe(plan);
    padding.parts = choose_replicas(description, device).parts;
    if (!device.is_cpu()) padding.row_classes = row_classes_on_gpu(plan, data, description);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
  }
  return padding;
}

} // namespace fvlm::train
