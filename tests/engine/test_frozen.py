import torch

from lape_mm.engine import FreezingOptimWrapperConstructor


def test_what_has_no_rate_is_not_the_optimizers():
    model = torch.nn.ModuleDict(dict(body=torch.nn.Linear(2, 2), head=torch.nn.Linear(2, 1)))
    model.body.norm = torch.nn.LayerNorm(2)
    wrapper = FreezingOptimWrapperConstructor(
        dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=.1, weight_decay=.2)),
        dict(custom_keys={'body': dict(lr_mult=.01), 'body.norm': dict(lr_mult=0.)}))(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(parameter)]: group['lr'] for group in wrapper.optimizer.param_groups
             for parameter in group['params']}
    assert rates == {'body.weight': .001, 'body.bias': .001, 'head.weight': .1, 'head.bias': .1}
    model.head(model.body.norm(model.body(torch.ones(3, 2)))).sum().backward()
    assert model.body.norm.weight.grad is not None  # as DistributedDataParallel wants it
    wrapper.step()
    assert torch.equal(model.body.norm.weight, torch.ones(2))
