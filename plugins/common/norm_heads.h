// norm_heads.h: an rmsnorm of heads (FVLM_PER_HEAD) as a norm of more and narrower rows.
#pragma once

#include <fvlm/kernels.h>

#include <cstdint>

namespace fvlm::plugins {

// The norms of a query: of its rows, or with FVLM_PER_HEAD of their heads.
inline fvlm_kernels_query norms_of(fvlm_kernels_query query) {
  if (!(query.options & FVLM_PER_HEAD)) return query;
  query.rows *= query.heads;
  query.width = query.head_dim;
  query.options &= ~std::uint32_t{FVLM_PER_HEAD};
  return query;
}

} // namespace fvlm::plugins
