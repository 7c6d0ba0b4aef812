// Sole owner of a CUDA object.
#pragma once

#include <utility>

namespace spillway::cuda {

// `destroy` gets what `create` gave; what it answers is ignored, since destructors have nobody to tell.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T object) : object_(object) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : object_(std::exchange(other.object_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    reset();
    object_ = std::exchange(other.object_, T{});
    return *this;
  }

  T get() const { return object_; }

 private:
  void reset() {
    if (object_ != T{}) static_cast<void>(destroy(object_));
    object_ = T{};
  }

  T object_{};
};

}  // namespace spillway::cuda
