#include "objective/kl/settings.h"

#include "objective/settings.h"

namespace fvlm::objective {

using namespace recipe;

Settings kl_settings() {
  auto type = record<Kl>("Kl", "kl", "Kullback-Leibler divergence from a teacher's next-token distribution.");
  type.field("teacher", &Kl::folder, path(),
             "What an earlier stage left, by its name, or a model directory, a checkpoint or a run (its newest "
             "checkpoint) with the same tokens and rows of the embedding. It is frozen. With reads = "
             "\"teacher_prompt\" it may be left out: the model itself is the teacher, without gradients.")
      .required_without("reads")
      .field("reads", &Kl::reads,
             optional(choice<Kl::Reads>(
                 {{"sample", Kl::Reads::sample, "the same frames and text as the model"},
                  {"teacher_prompt", Kl::Reads::teacher_prompt,
                   "the mix's `teacher_prompt` with the same answer, without frames; its t-th token of the answer is "
                   "compared with the model's"}})),
             "What the teacher reads. Default: sample.");
  label_fields(type);
  type.field("temperature", &Kl::temperature, number(above(0)),
             "Temperature of both distributions; above 1 is softer. The divergence is multiplied by its square, so "
             "that gradients keep their size.")
      .field("cache_teacher", &Kl::cache_teacher, boolean(),
             "Compute the teacher's hidden states of the labels once, before training, and cache them on disk. Steps "
             "then only apply its output head to them, and packs hold no texts of the teacher. Where the model is its "
             "own teacher, its decoder must be frozen.")
      .usage("fvlm.kl { teacher = \"models/large\", weight = 0.5 }");
  type.check([](Reader& reader, const Kl& kl) {
    if (kl.folder.empty() && !kl.reads_teacher_prompt())
      reader.report_at(".teacher", "without a teacher of its own, the model would be compared with itself",
                       "name a model directory, or set reads = \"teacher_prompt\"");
    if (kl.reads_teacher_prompt() && kl.on == plan::LossOn::all)
      reader.report_at(".on", "a teacher with a prompt of its own shares only the answer with the model",
                       "use on = \"answer\"");
  });
  term_weight(type);
  return recipe::alternative<plan::ObjectiveTerm>(type.done());
}

} // namespace fvlm::objective
