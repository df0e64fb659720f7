# find_package(MODEL) defines MODEL::MODEL, the shared library, and MODEL::static. Fortran programs
# compile ${MODEL_FORTRAN_SOURCE} too.
foreach(kind IN ITEMS so a)
  if(NOT EXISTS "${CMAKE_CURRENT_LIST_DIR}/libMODEL.${kind}")
    set(MODEL_FOUND FALSE)
    set(MODEL_NOT_FOUND_MESSAGE "libMODEL.${kind} is not built: use add_subdirectory")
    return()
  endif()
endforeach()
if(NOT TARGET MODEL::MODEL)
  add_library(MODEL::MODEL SHARED IMPORTED)
  set_target_properties(MODEL::MODEL PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/libMODEL.so"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
  add_library(MODEL::static STATIC IMPORTED)
  set_target_properties(MODEL::static PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/libMODEL.a"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}"
    INTERFACE_LINK_LIBRARIES "m;pthread")
endif()
set(MODEL_FORTRAN_SOURCE "${CMAKE_CURRENT_LIST_DIR}/MODEL.f90")
