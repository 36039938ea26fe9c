"""Dynamic subclasses: instances that become more than their class is.

Keras asks a layer's class what a call does, and has no hook in which the
operations of one layer could be given a device. So a layer that is placed
becomes an instance of a subclass of its class, made for it: `__call__` is
overridden as in any subclass, no class that others use is touched, and
`__class__` still names the class that it was made of, so that saving, copying
and `isinstance` see what they saw.
"""

_SUBCLASSES = {}
_MADE_OF = {}


def specialize(instance, mixin):
    """Makes `instance` an instance of a subclass of `mixin` and its class.

    Args:
      instance: Any object with a `__dict__`. One that was specialized with
        the same mixin before stays as it is.
      mixin: A class whose methods come first.
    """
    cls = type(instance)
    if issubclass(cls, mixin):
        return
    if (mixin, cls) not in _SUBCLASSES:
        made = _SUBCLASSES[mixin, cls] = _subclass(mixin, cls)
        _MADE_OF[made] = cls
    # `instance.__class__ = ...` would meet the property of an earlier one.
    object.__dict__["__class__"].__set__(instance, _SUBCLASSES[mixin, cls])


def generalize(instance):
    """Takes back the last `specialize`, if there was one."""
    cls = _MADE_OF.get(type(instance))
    if cls is not None:
        object.__dict__["__class__"].__set__(instance, cls)


def _subclass(mixin, cls):
    seen = cls.__dict__.get("__class__")
    if not isinstance(seen, property):
        seen = property(lambda self: cls)

    def reduce(self):
        # What Keras pickles with is a class method, and this class has no
        # name that could be looked up.
        function, *rest = cls.__reduce__(self)
        if getattr(function, "__self__", None) is type(self):
            function = getattr(self.__class__, function.__name__)
        return function, *rest

    namespace = {
        "__class__": seen,
        "__reduce__": reduce,
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    return type(cls)(cls.__name__, (mixin, cls), namespace)
