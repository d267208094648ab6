#include "model/trace.h"

#include "base/error.h"
#include "model/batch_file.h"
#include "model/loading.h"
#include "model/objectives.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fvlm::model {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

// A model at work on the batch.
struct TracedModel {
  std::unique_ptr<Model> model;
  std::string mode;
  VisualTokens visual;
  Value hidden;
};

class Tracer {
 public:
  Tracer(const TraceRequest& request, Registry& registry)
      : request_(request), ops_(registry, request.execution.operations()),
        tape_(request.gradients ? Tape::Mode::record : Tape::Mode::forward_only) {
    const auto& mode = request.mode;
    const bool coarse_term_fits = !request.preference && (mode.empty() || mode == "coarse_fine" || mode == "shallow");
    if (request.lambda_coarse != 0 && !coarse_term_fits)
      throw Error(ErrorKind::usage, "--lambda-coarse goes with --objective ce and the modes coarse_fine and shallow");
    if (request.preference == request.reference.empty())
      throw Error(ErrorKind::usage, "--objective dpo and --reference MODEL go together");
  }

  double run() {
    TracedModel policy = load(request_.model, request_.gradients);
    const BatchFile batch(request_.batch, policy.model->encoder().reads_bytes()); // samples' frames lie in its mapping
    if (request_.preference && policy.model->decoders() > 1)
      throw Error(ErrorKind::usage, "--objective dpo goes with a model of one decoder").at(request_.model.string());
    int64_t vocabulary = policy.model->config().decoder.vocab_size; // of the decoder that knows the fewest tokens
    for (const DecoderConfig& decoder : policy.model->config().further)
      vocabulary = std::min(vocabulary, decoder.vocab_size);
    const auto samples =
        batch.samples(request_.preference ? BatchFile::Texts::pairs : BatchFile::Texts::labelled, vocabulary);
    const FrameReader reader = policy.model->frame_reader(batch.frames());
    pack_ = make_pack(samples, Capacity::of(samples, reader.rows_per_frame), reader, ops_.tensor_options());
    text_lengths_.clear();
    for (const Sample& sample : samples)
      for (const Text& text : sample.texts)
        text_lengths_.push_back(std::ssize(text.tokens) - placeholders_of(text.tokens));

    if (policy.model->decoders() > 1) {
      trace_decoders(policy);
    } else {
      forward(policy, tape_, request_.attention ? EncodeOutputs::tokens_and_attention : EncodeOutputs::tokens);
      if (request_.preference)
        trace_dpo(policy);
      else
        out_["loss"] = trace_next_token({*policy.model, tape_, policy.visual, policy.hidden});
    }
    if (request_.gradients) {
      tape_.backward();
      policy.model->parameters().zero_missing_gradients();
      for (const auto& parameter : policy.model->parameters().all())
        if (parameter.gradient.defined()) // quantized weights have none
          out_["grad." + parameter.name] = in_file(parameter, parameter.gradient);
    }
    const VisualTokens visual = policy.visual.tokens.defined()
                                    ? policy.visual
                                    : reader.connector.encode_no_frames(ops_, reader.tokens_per_frame);
    out_["visual_tokens"] = visual.tokens.data;
    if (visual.queries.defined()) out_["queries"] = visual.queries.data;
    if (request_.attention) out_["attention"] = visual.attention;
    const auto wide = ops_.options().dtype == at::kDouble ? at::kDouble : at::kFloat;
    for (auto& [name, tensor] : out_)
      if (at::isFloatingType(tensor.scalar_type())) tensor = tensor.to(wide);
    write_tensors(request_.out, out_);
    return out_["loss"].item<double>();
  }

 private:
  TracedModel load(const fs::path& folder, bool trains) const {
    auto [model, mode] = load_model_in_mode(folder, request_.execution.arena(trains), request_.mode);
    if (request_.attention && !model->connector().has_attention())
      throw Error(ErrorKind::usage, "--attention: the connector of this model attends to nothing").at(folder.string());
    for (const plan::ConnectorMode& one : model->config().connector->modes())
      if (trains && one.name == mode && !one.has_gradients)
        throw Error(ErrorKind::usage, "{} is inference: it has no gradients", mode);
    return {std::move(model), std::move(mode), {}, {}};
  }

  void forward(TracedModel& traced, Tape& tape, EncodeOutputs outputs = EncodeOutputs::tokens) {
    traced.visual = traced.model->encode(tape, ops_, pack_, traced.mode, outputs);
    traced.hidden = traced.model->decode(tape, ops_, traced.visual.tokens, pack_, traced.visual.next);
  }

  // [sum of text lengths, vocab], for each of `sides` texts a sample has.
  std::vector<at::Tensor> logits(const Model& model, const Value& hidden, size_t sides) {
    Tape none(Tape::Mode::forward_only);
    const at::Tensor rows = at::tensor(pack_.text_rows, at::kLong).to(ops_.options().device);
    const Value text(hidden.data.index_select(0, rows));
    const at::Tensor all = model.decoder().logits(none, ops_, text).data;
    std::vector<std::vector<at::Tensor>> parts(sides);
    int64_t begin = 0;
    for (size_t text = 0; text < text_lengths_.size(); ++text) {
      parts[text % sides].push_back(all.narrow(0, begin, text_lengths_[text]));
      begin += text_lengths_[text];
    }
    std::vector<at::Tensor> joined;
    joined.reserve(sides);
    for (const auto& part : parts) joined.push_back(at::concat(part));
    return joined;
  }

  // What one decoder made of the batch.
  struct Decoded {
    const Model& model;
    Tape& tape;
    const VisualTokens& visual;
    const Value& hidden;
    std::string suffix = ""; // of the names of its tensors
    int64_t decoders = 1;    // over which the loss is the mean
  };

  // Every decoder reads the same tokens. Each leaves its gradient in the latents, as in training.
  void trace_decoders(TracedModel& policy) {
    const auto latents = policy.model->encode_for_all(tape_, ops_, pack_, policy.mode);
    std::vector<at::Tensor> losses;
    for (size_t i = 0; i < latents.size(); ++i) {
      const Model& model = policy.model->with_decoder(i);
      Tape tape(request_.gradients ? Tape::Mode::record : Tape::Mode::forward_only);
      VisualTokens visual;
      visual.tokens = model.adapt(tape, ops_, latents[i], pack_);
      const Value hidden = model.decode(tape, ops_, visual.tokens, pack_);
      const std::string suffix = i == 0 ? "" : "." + plan::decoder_name(i);
      losses.push_back(trace_next_token({model, tape, visual, hidden, suffix, std::ssize(latents)}));
      tape.backward();
      if (i == 0)
        policy.visual = visual;
      else if (visual.tokens.defined())
        out_["visual_tokens" + suffix] = visual.tokens.data;
    }
    out_["loss"] = at::stack(losses).mean();
  }

  // Returns the decoder's loss.
  at::Tensor trace_next_token(const Decoded& decoded) {
    const auto& [model, tape, visual, of_text, suffix, decoders] = decoded;
    const Labels& labels = pack_.labels;
    const at::Tensor weights = labels.weights.to(ops_.options().gradient_dtype);
    const at::Tensor gradients = decoders > 1 ? weights / decoders : weights;
    out_["logits" + suffix] = logits(model, of_text, 1)[0];
    at::Tensor losses = next_token_loss(tape, ops_, model, of_text, pack_, gradients);
    if (request_.lambda_coarse != 0) {
      const Value hidden = model.decode(tape, ops_, visual.view("coarse"), pack_);
      losses = losses + request_.lambda_coarse *
                            next_token_loss(tape, ops_, model, hidden, pack_, gradients * request_.lambda_coarse);
    }
    const at::Tensor counts = at::tensor(pack_.labels_per_text, at::kLong).to(ops_.options().device);
    out_["label_count"] = counts;
    out_["loss_per_sample" + suffix] =
        at::zeros(counts.sizes(), losses.options()).index_add_(0, labels.sequences, losses) / counts.clamp_min(1);
    return losses.mul(weights).sum();
  }

  void trace_dpo(TracedModel& policy) {
    const LogProbabilities policy_logprobs = log_probabilities(tape_, ops_, *policy.model, policy.hidden, pack_);
    const auto both = logits(*policy.model, policy.hidden, 2);
    Tape none(Tape::Mode::forward_only);
    TracedModel reference = load(request_.reference, false);
    forward(reference, none);
    const at::Tensor reference_logprobs = log_probabilities(none, ops_, *reference.model, reference.hidden, pack_).sum;
    const auto pairs = static_cast<double>(reference_logprobs.size(0)) / 2;
    const DpoLoss result = dpo_loss(policy_logprobs, reference_logprobs, pack_, request_.beta,
                                    at::full({}, 1 / pairs, policy_logprobs.sum.options()));
    out_["loss"] = result.losses.mean();
    out_["loss_per_sample"] = result.losses;
    out_["margin"] = result.margins.mean();
    out_["accuracy"] = result.margins.gt(0).to(at::kDouble).mean();
    out_["chosen_rewards"] = result.chosen_rewards;
    out_["rejected_rewards"] = result.rejected_rewards;
    for (const int64_t side : {0, 1}) {
      const std::string name = side == 0 ? "chosen" : "rejected";
      out_[name + "_logits"] = both[static_cast<size_t>(side)];
      out_[name + "_log_probs"] = policy_logprobs.sum.view({-1, 2}).select(1, side);
      out_["reference_" + name + "_log_probs"] = reference_logprobs.view({-1, 2}).select(1, side);
    }
  }

  const TraceRequest& request_;
  Operations ops_;
  Tape tape_;
  Pack pack_;
  std::vector<int64_t> text_lengths_; // tokens
  Tensors out_;
};

} // namespace

double trace(const TraceRequest& request, Registry& registry) {
  return Tracer(request, registry).run();
}

} // namespace fvlm::model
