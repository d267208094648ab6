#include "data/media/tile_forms/tile_form.h"

namespace fvlm {

const TileFormRules& rules_of(TileForm form) {
  static constexpr const TileFormRules* all[]{
#define FVLM_TILE_FORM(name, ...) &name##_rules,
#include "data/tile_forms.inc"
#undef FVLM_TILE_FORM
  };
  return *all[static_cast<size_t>(form)];
}

std::span<const TileForm> all_tile_forms() {
  static constexpr TileForm all[]{
#define FVLM_TILE_FORM(name, ...) TileForm::name,
#include "data/tile_forms.inc"
#undef FVLM_TILE_FORM
  };
  return all;
}

} // namespace fvlm
