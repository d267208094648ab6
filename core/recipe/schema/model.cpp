// fvlm.model { }: the two towers and what connects them.
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

Ref<Dinov2> dinov2() {
  return record<Dinov2>("Dinov2", "dinov2", "A fresh DINOv2 vision tower, initialised from the recipe's seed.")
      .field("width", &Dinov2::width, whole(at_least(1)), "Features of a token.")
      .required()
      .field("layers", &Dinov2::layers, whole(at_least(1)), "Number of layers.")
      .required()
      .field("heads", &Dinov2::heads, whole(at_least(1)), "Attention heads; they share the width evenly.")
      .required()
      .field("mlp", &Dinov2::mlp, optional(whole(at_least(1))), "Features inside the MLP. Default: 4 x width.")
      .field("patch_size", &Dinov2::patch_size, whole(at_least(1)), "Edge of the square that becomes one token.")
      .unit("pixels")
      .check([](Reader& reader, const Dinov2& tower) {
        if (tower.width % tower.heads)
          reader.complain_at(".heads",
                             fmt::format("{} heads do not share a width of {} evenly", tower.heads, tower.width));
      })
      .done();
}

Ref<Llama> llama() {
  return record<Llama>("Llama", "llama", "A fresh decoder of the Llama family, initialised from the recipe's seed.")
      .field("tokenizer", &Llama::tokenizer, path(), "Folder with tokenizer.json; the vocabulary has its size.")
      .required()
      .field("width", &Llama::width, whole(at_least(1)), "Features of a token.")
      .required()
      .field("layers", &Llama::layers, whole(at_least(1)), "Number of layers.")
      .required()
      .field("heads", &Llama::heads, whole(at_least(1)), "Query heads; they share the width evenly.")
      .required()
      .field("kv_heads", &Llama::kv_heads, optional(whole(at_least(1))),
             "Key and value heads, shared by groups of query heads. Default: as many as heads.")
      .field("mlp", &Llama::mlp, optional(whole(at_least(1))), "Features inside the gated MLP. Default: 4 x width.")
      .field("rope_theta", &Llama::rope_theta, number(above(0)), "Base of the rotary position angles.")
      .field("tied_head", &Llama::tied_head, flag(), "The output head is the token embedding.")
      .field("max_positions", &Llama::max_positions, whole(at_least(1)), "Longest sequence of visual and text tokens.")
      .unit("tokens")
      .check([](Reader& reader, const Llama& tower) {
        if (tower.width % tower.heads || tower.width / tower.heads % 2)
          reader.complain_at(".heads",
                             fmt::format("{} heads do not share a width of {} in even parts", tower.heads, tower.width),
                             "rotary positions want an even number of features a head");
        else if (tower.heads % tower.kv_heads.value_or(tower.heads))
          reader.complain_at(".kv_heads", fmt::format("{} heads do not share {} evenly", tower.heads, *tower.kv_heads));
      })
      .done();
}

Ref<Connector> connector() {
  return record<Connector>("Connector", "",
                           "What turns a frame into one visual token, and a hidden state into the next query.")
      .field("query_dim", &Connector::query_dim, whole(at_least(1)), "Features of a query.")
      .field("visual_scale", &Connector::visual_scale, number(above(0)), "Factor on every visual token.")
      .field("attend", &Connector::attend,
             choice<Attend>({{"deep", Attend::deep, "through every layer of the tower"},
                             {"shallow", Attend::shallow, "one cross-attention on the last layer (an ablation)"}}),
             "How a query reads a frame.")
      .done();
}

} // namespace

Ref<Model> model_schema() {
  static const auto type =
      record<Model>("Model", "model", "The model: a vision tower, a decoder and the connector between them.")
          .usage("fvlm.model { vision = \"weights/dinov2-small\", decoder = \"weights/SmolLM2-135M-Instruct\" }")
          .field("vision", &Model::vision, one_of(path(), dinov2()),
                 "The vision tower: a Hugging Face folder (config.json, model.safetensors), or a fresh one.")
          .required()
          .field("decoder", &Model::decoder, one_of(path(), llama()),
                 "The language model: a Hugging Face folder with its tokenizer, or a fresh one.")
          .required()
          .elsewhere({"llm", "language_model"})
          .field("connector", &Model::connector, connector(),
                 "Always trained from a fresh start, unless a stage's `from` brings one.")
          .field("image_size", &Model::image_size, whole(at_least(1)), "Edge of the square that frames are brought to.")
          .unit("pixels")
          .field("groups", &Model::groups, map("group name", list(text(), {.least = 1, .or_one = true})),
                 "Parameter groups besides connector, vision and decoder: patterns (with *) of parameter names as in a "
                 "model directory. What a pattern matches leaves those three; no two may match one parameter.")
          .example("{ embeddings = \"decoder.model.embed_tokens.*\" }")
          .check([](Reader& reader, const Model& model) {
            constexpr size_t most_groups = 100; // each stage has a learning rate for each
            if (model.groups.size() > most_groups)
              reader.complain_at(".groups", fmt::format("{} groups of parameters, and there can be at most {}",
                                                        model.groups.size(), most_groups));
            for (const char* own : {"connector", "vision", "decoder", "default"})
              if (model.groups.contains(own))
                reader.complain_at(".groups" + key_part(own), fmt::format("'{}' is a name of the engine's own", own));
            auto* fresh = std::get_if<Dinov2>(&model.vision);
            if (fresh && model.image_size % fresh->patch_size)
              reader.complain_at(".image_size", fmt::format("{} pixels are no whole number of patches of {}",
                                                            model.image_size, fresh->patch_size));
          })
          .done();
  return type;
}

} // namespace fvlm::recipe
