! MODEL in Fortran: a handle as a variable. Arrays have the samples along their last axis.
!
! With `status` a procedure returns an error code; without it an error ends the program.
module MODEL
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  implicit none
  private

! @CODES@
! @TYPES@
  ! The network. A variable is used by one thread at a time; every thread may have its own.
  type, public :: MODEL_model
    private
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure :: create => do_create
    procedure :: destroy => do_destroy
    procedure :: message => do_message
    procedure :: store => do_store
    procedure :: load => do_load
! @BOUND@
  end type

  interface
    function c_create(model) bind(c, name="MODEL_create") result(code)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: model
      integer(c_int) :: code
    end function

    subroutine c_destroy(model) bind(c, name="MODEL_destroy")
      import :: c_ptr
      type(c_ptr), value :: model
    end subroutine

    function c_message(model) bind(c, name="MODEL_message") result(text)
      import :: c_ptr
      type(c_ptr), value :: model
      type(c_ptr) :: text
    end function

    function c_store(model, path) bind(c, name="MODEL_store") result(code)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: code
    end function

    function c_load(model, path) bind(c, name="MODEL_load") result(code)
      import :: c_char, c_int, c_ptr
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: code
    end function

    function c_length(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function

! @DECLARED@
  end interface

contains

  ! Create the network with its trained weights.
  subroutine do_create(self, status)
    class(MODEL_model), intent(inout) :: self
    integer, intent(out), optional :: status

    if (c_associated(self%handle)) call c_destroy(self%handle)
    call finish(self, int(c_create(self%handle)), "create", status)
  end subroutine

  ! Free the memory of the network.
  subroutine do_destroy(self)
    class(MODEL_model), intent(inout) :: self

    call c_destroy(self%handle)
    self%handle = c_null_ptr
  end subroutine

  ! Explain the last error.
  function do_message(self) result(text)
    class(MODEL_model), intent(in) :: self
    character(len=:), allocatable :: text

    text = text_of(c_message(self%handle))
  end function

  function text_of(found) result(text)
    type(c_ptr), intent(in) :: found
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i, length

    length = int(c_length(found))
    call c_f_pointer(found, letters, [length])
    allocate (character(len=length) :: text)
    do i = 1, length
      text(i:i) = letters(i)
    end do
  end function

  ! Write the weights to a safetensors file, for load_weights of Caldera.
  subroutine do_store(self, path, status)
    class(MODEL_model), intent(in) :: self
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: status

    call finish(self, int(c_store(self%handle, trim(path)//c_null_char)), "store", status)
  end subroutine

  ! Read the weights of this network from a .caldera or safetensors file.
  subroutine do_load(self, path, status)
    class(MODEL_model), intent(in) :: self
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: status

    call finish(self, int(c_load(self%handle, trim(path)//c_null_char)), "load", status)
  end subroutine

! @BODIES@
  subroutine finish(self, code, what, status)
    class(MODEL_model), intent(in) :: self
    integer, intent(in) :: code
    character(len=*), intent(in) :: what
    integer, intent(out), optional :: status

    if (present(status)) then
      status = code
    else if (code /= MODEL_ok) then
      write (error_unit, '(4a,i0,2a)') "MODEL_", what, ": ", "error ", code, ": ", do_message(self)
      error stop 1
    end if
  end subroutine
end module
