// fvlm-engine trace: runs one batch through a model and saves every intermediate tensor.
#include "model/trace.h"

#include "base/error.h"
#include "cli/execution_options.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"

#include <fmt/format.h>

namespace fvlm::cli {

int trace_model(Arguments arguments) {
  Options options(
      "trace MODEL --batch B.safetensors --out O.safetensors [--mode M] [--objective ce|dpo] [--grads] [--attention]",
      "Run one batch through a model and save the loss, logits, visual tokens, queries and gradients.\n"
      "The batch holds frames [N, 3, H, W], frame_counts, input_ids, text_lengths and loss_mask; for dpo chosen_ and\n"
      "rejected_ versions of the last three. For an encoder that reads bytes it holds source_bytes (uint8) and\n"
      "source_lengths in place of the first two. `attention` holds the attention weights of each frame's query over\n"
      "the frame's tokens (CLS first), in every layer that the query attends to; rows sum to 1.",
      "trace runs/mine/align/step-000100 --batch batch.safetensors --grads --out numbers.safetensors");
  with_execution_options(options)
      .positional("MODEL", named_model_help)
      .required_value("batch", "FILE", "the batch, safetensors")
      .required_value("out", "FILE", "output file, safetensors")
      .value("mode", "MODE", "of the connector; default: its first; a wrong one lists them all")
      .value("objective", "ce|dpo", "cross-entropy (default) or preference")
      .value("reference", "MODEL", "frozen reference model of dpo")
      .value("beta", "X", "beta of dpo; default 0.1")
      .value("lambda-coarse", "X", "add X times the cross-entropy of the coarse sequence")
      .flag("grads", "also save grad.NAME of every parameter")
      .flag("attention", "also save attention [frames, layers, heads, tokens of a frame]");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  model::TraceRequest request;
  request.model = model_named(*parsed->value("MODEL"));
  request.batch = *parsed->value("batch");
  request.out = *parsed->value("out");
  request.mode = parsed->value_or("mode", "");
  const std::string objective = parsed->value_or("objective", "ce");
  if (objective != "ce" && objective != "dpo")
    throw Error(ErrorKind::usage, "--objective: expected ce or dpo, got '{}'", objective);
  request.preference = objective == "dpo";
  if (const auto reference = parsed->value("reference")) request.reference = model_named(*reference);
  request.beta = parsed->number_or("beta", 0.1);
  request.lambda_coarse = parsed->number_or("lambda-coarse", 0);
  request.gradients = parsed->flag("grads");
  request.attention = parsed->flag("attention");
  request.execution = execution_of(*parsed);
  const auto registry = open_registry(*parsed);
  fmt::print("loss {:.8g}\n", model::trace(request, *registry));
  return 0;
}

} // namespace fvlm::cli
