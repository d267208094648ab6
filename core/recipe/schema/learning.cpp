// The schema of objectives, optimizers and learning rate schedules.
#include "objective/settings.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/values.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

template <class T>
void common_fields(Record<T>& record,
                   const char* weight_decay =
                       "Decoupled weight decay, for all groups or by group: of every parameter, norms and biases, too. "
                       "Default: 0.01.") {
  record
      .field("lr", &T::lr, by("parameter group", number(above(0))),
             "Base learning rate: one for all groups, or a table by group. Every group that is trained needs one.")
      .required()
      .aliases({"learning_rate"})
      .example("{ connector = 1e-3, vision = 1e-5, decoder = 1e-5 }")
      .field("weight_decay", &T::weight_decay, by("parameter group", number(at_least(0))), weight_decay)
      .field("clip", &T::clip, number(at_least(0)), "Largest global norm of the gradient; 0: no clipping.")
      .aliases({"max_grad_norm", "grad_clip", "clip_norm"})
      .field("moments", &T::moments,
             choice<Moments>({{"fp32", Moments::fp32, "exact"}, {"bf16", Moments::bf16, "half the memory"}}),
             "Dtype of the optimizer's moments. Master weights are always fp32.");
}

Ref<std::vector<double>> betas() {
  return list(number(at_least(0).below(1)), {.exactly = 2});
}

Ref<AdamByGroup::Own> adam_group() {
  return record<AdamByGroup::Own>("AdamGroup", "", "Settings of AdamW for one parameter group.")
      .field("betas", &AdamByGroup::Own::betas, optional(betas()),
             "Decay of the first and of the second moment. Default: that of all groups.")
      .field("eps", &AdamByGroup::Own::eps, optional(number(above(0))),
             "Added to the root of the second moment. Default: that of all groups.")
      .done();
}

template <class T>
void adam_fields(Record<T>& record) {
  static const auto group = adam_group();
  record.field("betas", &T::betas, betas(), "Decay of the first and of the second moment.")
      .field("eps", &T::eps, number(above(0)), "Added to the root of the second moment.")
      .field("groups", &T::groups, optional(map("parameter group", group)),
             "Parameter groups with other betas or another eps.")
      .example("{ connector = { betas = { 0.9, 0.95 } } }");
}

Ref<AdamW> adamw() {
  auto type = record<AdamW>("AdamW", "adamw", "Adam with decoupled weight decay.");
  common_fields(type);
  adam_fields(type);
  type.usage("fvlm.adamw { lr = { connector = 1e-3, vision = 1e-5, decoder = 1e-5 } }");
  return type.done();
}

Ref<Muon::Others> muon_others() {
  auto type = record<Muon::Others>("MuonOthers", "",
                                   "AdamW for the parameters that Muon does not update: embeddings, head and "
                                   "vectors.");
  type.field("lr", &Muon::Others::lr, by("parameter group", number(above(0))),
             "Base learning rate, for all groups or by group.")
      .required()
      .aliases({"learning_rate"});
  adam_fields(type);
  return type.done();
}

Ref<Muon::Warmup> momentum_warmup() {
  return record<Muon::Warmup>("MomentumWarmup", "", "A linear rise of Muon's momentum to its own value.")
      .field("from", &Muon::Warmup::from, number(at_least(0).below(1)), "Momentum of the stage's first step.")
      .field("steps", &Muon::Warmup::steps, integer(at_least(1)), "Steps until the momentum has its own value.")
      .unit("steps")
      .done();
}

Ref<Muon> muon() {
  auto type =
      record<Muon>("Muon", "muon", "Momentum orthogonalized by Newton-Schulz, for the matrices inside the layers.");
  common_fields(type);
  type.field("momentum", &Muon::momentum, number(at_least(0).below(1)), "Decay of the momentum.")
      .field("momentum_warmup", &Muon::momentum_warmup, optional(momentum_warmup()),
             "Start with less momentum. Default: none.")
      .example("{ from = 0.85, steps = 300 }")
      .field("groups", &Muon::groups, optional(list(text(), {.min = 1, .allow_single = true})),
             "Parameter groups whose matrices Muon updates; all of the other groups belongs to `others`. Default: "
             "all groups.")
      .example("{ \"decoder\" }")
      .field("nesterov", &Muon::nesterov, boolean(), "Use Nesterov momentum.")
      .field("eps", &Muon::eps, number(above(0)), "Added to the norm that a matrix is divided by.")
      .field("others", &Muon::others, muon_others(), "AdamW for all other parameters: embeddings, head and vectors.")
      .required()
      .usage("fvlm.muon { lr = 0.02, others = { lr = 3e-4 } }");
  return type.done();
}

Ref<PluginOptimizer> plugin_optimizer() {
  auto type = record<PluginOptimizer>("Optimizer", "optimizer", "An optimizer algorithm of a plugin, by name.");
  type.field("algorithm", &PluginOptimizer::algorithm, identifier(false),
             "Name of the algorithm: the NAME of the plugin's kind \"fvlm.optimizer/1:NAME\".")
      .argument()
      .required();
  common_fields(type,
                "Weight decay, for all groups or by group, if the algorithm has it. Default: the algorithm's own.");
  type.field("options", &PluginOptimizer::options, map("hyperparameter", number()),
             "The algorithm's own hyperparameters. The plugin checks their names and ranges.")
      .usage("fvlm.optimizer \"lion\" { lr = 1e-4, options = { beta1 = 0.9, beta2 = 0.99 } }");
  return type.done();
}

template <class T>
Record<T> schedule(const char* title, const char* constructor, const char* doc) {
  auto type = record<T>(title, constructor, doc);
  type.field("warmup", &T::warmup, number(between(0, 1)), "Fraction of the stage's steps with linear warm-up from 0.")
      .hint("it is a fraction of the stage's steps: warmup = 0.01 is 100 of 10,000 steps")
      .aliases({"warmup_ratio", "warmup_steps", "warmup_share"});
  return type;
}

} // namespace

Ref<std::vector<Term>> objective_schema() {
  static const auto type =
      list(registered(objective::all_settings()), {.min = 1, .allow_single = true, .constructor = "sum"});
  return type;
}

Ref<Optimizer> optimizer_schema() {
  static const auto type = one_of(adamw(), muon(), plugin_optimizer());
  return type;
}

Ref<Schedule> schedule_schema() {
  static const auto type = one_of(
      schedule<Constant>("Constant", "constant", "Constant at the base rate.")
          .usage("fvlm.constant { warmup = 0.03 }")
          .done(),
      schedule<Cosine>("Cosine", "cosine", "Decays along half a cosine.")
          .field("to_share", &Cosine::to_share, number(between(0, 1)), "Final rate, as a fraction of the base rate.")
          .usage("fvlm.cosine { to_share = 0.1, warmup = 0.03 }")
          .done(),
      schedule<Linear>("Linear", "linear", "Decays linearly.")
          .field("to_share", &Linear::to_share, number(between(0, 1)), "Final rate, as a fraction of the base rate.")
          .usage("fvlm.linear { warmup = 0.03 }")
          .done(),
      schedule<Converging>("Converging", "converging",
                           "Each group follows half a cosine from its own base rate, down or up, to one common rate.")
          .field("to", &Converging::to, number(above(0)), "The common final learning rate.")
          .required()
          .usage("fvlm.converging { to = 3e-5, warmup = 0.03 }")
          .done(),
      curve(at_least(0)));
  return type;
}

} // namespace fvlm::recipe
