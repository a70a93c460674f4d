# Flags that every translation unit of ours gets. Contraction is off everywhere: the bits of a sum
# must not depend on whether a compiler found an fma.
add_library(nibble_flags INTERFACE)
set(host_flags -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(NIBBLE_SANITIZE)
  list(APPEND host_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
endif()
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-missing-field-initializers;${host_flags}>
  # GCC 12 sees one in every "text" + std::string
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
  # nvcc hands them to the host compiler; its own contraction is off by -fmad=false.
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;SHELL:-Xcompiler=$<JOIN:${host_flags},$<COMMA>>>)
if(NIBBLE_SANITIZE)
  target_link_options(nibble_flags INTERFACE -fsanitize=address,undefined)
endif()
if(NIBBLE_FUZZ)
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(NIBBLE_CCACHE ccache)
if(NIBBLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
endif()
if(NIBBLE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
endif()
