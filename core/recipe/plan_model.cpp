// What copies a Model of a Plan, and with it its connector's settings: rooms that only read a Plan do not link those.
#include "recipe/plan.h"

namespace fvlm::plan {

Model Model::with_decoder(size_t index) const {
  Model model = *this;
  model.decoders.reset();
  if (index > 0) model.decoder = decoders->at(index - 1);
  return model;
}

} // namespace fvlm::plan
